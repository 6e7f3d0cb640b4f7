#include "common/telemetry/preflight_facts.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace tandem::telemetry {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json orNull(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class Value>
std::optional<Value> optionalIn(const Json& object, const char* name) {
  const Json& value = object.at(name);
  return value.is_null() ? std::nullopt : std::optional<Value>(value.get<Value>());
}

Json jsonOf(const NetworkInterface& one) {
  return {{"name", one.name},
          {"up", one.isUp},
          {"mtu", orNull(one.mtu)},
          {"megabits_per_second", orNull(one.megabitsPerSecond)}};
}

NetworkInterface interfaceIn(const Json& object) {
  return {.name = object.at("name"),
          .isUp = object.at("up"),
          .mtu = optionalIn<std::int64_t>(object, "mtu"),
          .megabitsPerSecond = optionalIn<std::int64_t>(object, "megabits_per_second")};
}

}  // namespace

std::optional<double> RankFacts::get(const std::string& name) const {
  const auto found = readings.find(name);
  return found == readings.end() ? std::nullopt : std::optional(found->second);
}

void RankFacts::set(const std::string& name, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) readings[name] = *value;
}

double TrialFacts::projectedSeconds() const {
  return static_cast<double>(stepsOfTheRun) * stepSeconds + static_cast<double>(checkpoints) * checkpointSeconds;
}

std::string toJson(const RankFacts& facts) {
  Json interfaces = Json::array();
  for (const NetworkInterface& one : facts.interfaces) interfaces.push_back(jsonOf(one));
  return base::lenientJsonText(Json{{"rank", facts.rank},
                                    {"host", facts.host},
                                    {"device", facts.device},
                                    {"processor", facts.processor},
                                    {"shares_memory", facts.sharesMemory},
                                    {"why_no_sensors", facts.whyNoSensors},
                                    {"versions", facts.versions},
                                    {"hashes", facts.hashes},
                                    {"readings", facts.readings},
                                    {"throttle_reasons", orNull(facts.throttleReasons)},
                                    {"interfaces", interfaces}});
}

RankFacts parseRankFacts(const std::string& text) {
  const Json object = base::parseOrderedJson(text);
  RankFacts facts{.rank = object.at("rank"),
                  .host = object.at("host"),
                  .device = object.at("device"),
                  .processor = object.at("processor"),
                  .sharesMemory = object.at("shares_memory"),
                  .whyNoSensors = object.at("why_no_sensors"),
                  .versions = object.at("versions"),
                  .hashes = object.at("hashes"),
                  .readings = object.at("readings"),
                  .throttleReasons = optionalIn<std::uint64_t>(object, "throttle_reasons")};
  for (const Json& one : object.at("interfaces")) facts.interfaces.push_back(interfaceIn(one));
  return facts;
}

std::string toJson(const LinkFacts& facts) {
  Json pairs = Json::array(), gathers = Json::array();
  for (const PairRate& pair : facts.pairs) {
    pairs.push_back({{"ranks", {pair.first, pair.second}}, {"bytes", pair.bytes}, {"seconds", pair.seconds}});
  }
  for (const GatherRate& gather : facts.gathers) {
    gathers.push_back({{"bytes", gather.bytes}, {"bus_bytes_per_second", gather.bytesPerSecond}});
  }
  return base::jsonText(Json{
      {"transport", facts.transport}, {"of_devices", facts.isOfDevices}, {"pairs", pairs}, {"all_gather", gathers}});
}

std::string toJson(const TrialFacts& t) {
  return base::jsonText(Json{{"steps", t.steps},
                             {"steps_of_the_run", t.stepsOfTheRun},
                             {"finite", t.finite},
                             {"step_seconds", t.stepSeconds},
                             {"wait_share", t.waitShare},
                             {"communication_share", t.communicationShare},
                             {"data_share", t.dataShare},
                             {"tokens_per_second", t.tokensPerSecond},
                             {"model_flops_per_second", t.modelFlopsPerSecond},
                             {"mfu", orNull(t.mfu)},
                             {"mfu_of", t.mfuOf},
                             {"checkpoint_seconds", t.checkpointSeconds},
                             {"checkpoints", t.checkpoints},
                             {"joules_per_step", orNull(t.joules)},
                             {"joules_of", t.joulesOf},
                             {"projected_seconds", t.projectedSeconds()}});
}

}  // namespace tandem::telemetry
