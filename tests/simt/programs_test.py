"""pretrain and evaluate on an emulated GPU: the same losses and text as on the CPU, at any rank count, resumed exactly.

The programs are those of apps/ with the CUDA kernels compiled for the CPU (tests/simt/CMakeLists.txt).
"""

import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from tandem_runs import BUILD, SEQUENCE, World, run, succeed  # noqa: E402

PRETRAIN, EVALUATE = BUILD / "tests" / "pretrain-simt", BUILD / "tests" / "evaluate-simt"
# Streams are lazy (work runs only when it is waited for), and the host may not touch memory of the device.
EMULATED = {"SIMT_STREAMS": "lazy", "SIMT_HOST_GUARD": "1", "SIMT_THREADS": "1"}
STEPS = 20
SMALL = {"batch_tokens": 6 * SEQUENCE}

world = World()
# Heads of 64: those that the tensor cores' kernels take.
WIDE = world.write_model("wide.json", hidden_size=64, head_dim=64, num_attention_heads=2, num_key_value_heads=1,
                         num_hidden_layers=1, intermediate_size=96)
# Two layers, for two stages, and heads and keys for two tensor ranks.
WIDE_PAIR = world.write_model("wide-pair.json", hidden_size=64, head_dim=32, num_attention_heads=4,
                              num_key_value_heads=2, num_hidden_layers=2, intermediate_size=96)
# Six, for up to six virtual stages.
WIDE_SIX = world.write_model("wide-six.json", hidden_size=64, head_dim=32, num_attention_heads=4,
                             num_key_value_heads=2, num_hidden_layers=6, intermediate_size=96)


def train(output, steps=STEPS, ranks=1, **options):
    """The losses of a run on the emulated GPU."""
    arguments = world.arguments(world.path(output), steps, device="cuda", **{**SMALL, **options})
    ended = succeed(ranks, PRETRAIN, *arguments, environment=EMULATED, seconds=400)
    return world.losses(output), ended.err


def train_on_cpu(output, steps=STEPS, **options):
    world.pretrain(output, steps, **{**SMALL, **options})
    return world.losses(output)


class Training(unittest.TestCase):
    def assert_follows(self, losses, expected, tolerance):
        self.assertEqual(len(losses), len(expected))
        for step, (loss, reference) in enumerate(zip(losses, expected), start=1):
            self.assertAlmostEqual(loss / reference, 1, delta=tolerance, msg=f"step {step}")

    def test_follows_the_cpu_on_one_two_and_three_ranks(self):
        expected = train_on_cpu("cpu")
        for ranks, exchange in ((1, "auto"), (2, "nccl"), (3, "mpi")):
            with self.subTest(ranks=ranks, exchange=exchange):
                losses, log = train(f"gpu{ranks}", ranks=ranks, exchange=exchange)
                self.assert_follows(losses, expected, 1e-4)
                if ranks > 1:
                    self.assertIn("NCCL" if exchange == "nccl" else "through the host's memory", log)

    def test_follows_the_cpu_in_bfloat16_through_the_tensor_cores(self):
        expected = train_on_cpu("cpu16", model=WIDE)
        losses, log = train("gpu16", model=WIDE, precision="bf16", attention="mma")
        self.assert_follows(losses, expected, 2e-2)
        self.assertIn("attention by", log)

    def test_follows_the_cpu_in_float16_through_the_tensor_cores(self):
        expected = train_on_cpu("cpu-fp16", 8, model=WIDE)
        options = {"model": WIDE, "precision": "fp16", "attention": "mma"}
        losses, _ = train("gpu-fp16", 8, ranks=2, **options)
        self.assert_follows(losses, expected, 5e-3)
        scales = [line["loss_scale"] for line in world.step_lines("gpu-fp16")]
        self.assertEqual(scales, [65536] * 8)

    def test_moments_in_bfloat16_follow_the_cpus(self):
        options = {"optimizer_states": "bf16", "micro_batch": 1}
        self.assert_follows(train("states-gpu", 8, ranks=2, **options)[0], train_on_cpu("states-cpu", 8, **options), 1e-3)

    def test_states_on_the_host_change_no_bit_and_leave_the_device_their_room(self):
        options = {"model": WIDE, "precision": "bf16", "ranks": 2, "checkpoint_every": 3}
        on_device, _ = train("states-device", 6, **options)
        on_host, _ = train("states-host", 6, optimizer_memory="host", **options)
        self.assertEqual(on_host, on_device)
        self.assertEqual(world.tensors("states-host"), world.tensors("states-device"))
        shutil.rmtree(world.path("states-host") / "checkpoints" / "step-00000006")
        again, _ = train("states-host", 6, optimizer_memory="host", **options)
        self.assertEqual(again, on_device)
        arguments = world.arguments(world.path("states-tight"), 1, device="cuda", **SMALL, model=WIDE)
        tight = {**EMULATED, "SIMT_MEMORY": "2450000"}  # 180 kB less than it all needs, of which states are 360 kB
        self.assertEqual(run(1, PRETRAIN, *arguments, environment=tight).code, 1)
        succeed(1, PRETRAIN, *arguments, "--optimizer-memory", "host", environment=tight)

    def test_recorded_micro_batches_change_no_bit(self):
        # An evaluation in between takes the memory that recordings borrow.
        options = {"ranks": 2, "micro_batch": 1, "exchange": "nccl", "evaluate_every": 4, "val": world.val,
                   "evaluate_tokens": 64}
        plain, _ = train("graphs-off", 7, **options)
        recorded, _ = train("graphs-on", 7, cuda_graphs="on", **options)
        self.assertEqual(recorded, plain)
        self.assertEqual(world.tensors("graphs-on"), world.tensors("graphs-off"))

    def test_resumes_bit_for_bit(self):
        whole, _ = train("whole", 8)
        train("halves", 8, checkpoint_every=3)
        first = world.losses("halves")
        self.assertEqual(first, whole)
        for name in ("step-00000006", "step-00000008"):
            self.assertIn(name, world.checkpoints("halves"))
        # Goes back to step 6 and on from there.
        shutil.rmtree(world.path("halves") / "checkpoints" / "step-00000008")
        again, _ = train("halves", 8, checkpoint_every=3)
        self.assertEqual(again, whole)
        self.assertEqual(world.tensors("halves"), world.tensors("whole"))

    def test_muon_and_accumulation_follow_the_cpu(self):
        options = {"optimizer": "muon", "micro_batch": 1}
        self.assert_follows(train("muon-gpu", 6, ranks=2, **options)[0], train_on_cpu("muon-cpu", 6, **options), 1e-3)


class Sharding(unittest.TestCase):
    def test_every_axis_of_a_grid_and_stage_of_zero_follows_the_cpu_on_one_rank(self):
        options = {"model": WIDE_PAIR, "micro_batch": 1}
        expected = train_on_cpu("grid-cpu", 4, **options)
        for ranks, shard, exchange in ((2, "dp=2,zero=2", "nccl"), (2, "dp=2,zero=3", "nccl"), (2, "tp=2", "nccl"),
                                       (2, "pp=2", "nccl"), (2, "pp=2", "mpi"), (2, "cp=2", "nccl"),
                                       (3, "dp=3,zero=3", "mpi"), (4, "tp=2,pp=2", "mpi")):
            with self.subTest(shard=shard, exchange=exchange):
                losses, _ = train(f"grid-{shard}-{exchange}", 4, ranks=ranks, shard=shard, exchange=exchange, **options)
                Training.assert_follows(self, losses, expected, 1e-4)

    def test_interleaved_stages_follow_the_cpu_on_one_rank(self):
        options = {"model": WIDE_SIX, "micro_batch": 1}
        expected = train_on_cpu("interleaved-cpu", 3, **options)
        for ranks, shard, exchange in ((2, "pp=2,vp=2", "nccl"), (3, "pp=3,vp=2", "nccl"), (2, "pp=2,vp=3", "mpi")):
            with self.subTest(shard=shard, exchange=exchange):
                losses, _ = train(f"interleaved-{shard}-{exchange}", 3, ranks=ranks, shard=shard, exchange=exchange,
                                  **options)
                Training.assert_follows(self, losses, expected, 1e-4)

    def test_muon_and_8_bit_layers_follow_the_cpu_on_shared_out_weights(self):
        muon = {"optimizer": "muon", "micro_batch": 1}
        eight = {"model": WIDE, "precision": "bf16", "fp8": True}
        for name, options, stages, tolerance in (("muon", muon, (2, 3), 1e-3), ("eight", eight, (3,), 2e-2)):
            expected = train_on_cpu(f"shared-{name}", 6, **options)
            for stage in stages:
                with self.subTest(name=name, stage=stage):
                    losses, _ = train(f"shared-{name}-{stage}", 6, ranks=2, shard=f"dp=2,zero={stage}", **options)
                    Training.assert_follows(self, losses, expected, tolerance)


class EightBits(unittest.TestCase):
    OPTIONS = {"model": WIDE, "precision": "bf16", "fp8": True}

    def test_losses_follow_the_cpus_rounding_and_resume_bit_for_bit(self):
        expected = train_on_cpu("cpu8", 8, **self.OPTIONS)
        whole, log = train("whole8", 8, **self.OPTIONS)
        self.assertIn("linear layers of 8-bit floats: 4 ", log)
        Training.assert_follows(self, whole, expected, 2e-2)
        train("halves8", 8, checkpoint_every=5, **self.OPTIONS)
        shutil.rmtree(world.path("halves8") / "checkpoints" / "step-00000008")
        again, _ = train("halves8", 8, checkpoint_every=5, **self.OPTIONS)
        self.assertEqual(again, whole)
        self.assertEqual(world.tensors("halves8"), world.tensors("whole8"))

    def test_a_gpu_without_them_and_wide_storage_are_refused_with_the_reason(self):
        arguments = world.arguments(world.path("none8"), 1, device="cuda", **SMALL, **self.OPTIONS)
        ended = run(2, PRETRAIN, *arguments, environment={**EMULATED, "SIMT_ARCH": "80"})
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("--fp8 cannot run here: emulated sm_80 is sm_80, and products of 8-bit floats begin with sm_89",
                      ended.err)
        arguments = world.arguments(world.path("none8"), 1, **SMALL, model=WIDE, precision="fp32", fp8=True)
        ended = run(1, "pretrain", *arguments)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("give --precision bf16", ended.err)


class Sensors(unittest.TestCase):
    STATE = {"name": "NVIDIA GB10", "uuid": "GPU-00000000-0000-0000-0000-000000000000", "clock": 2405, "milliwatts": 89000,
             "temperature": 70, "reasons": 4}

    def train(self, output, library):
        state = world.path(f"{output}.nvml")
        state.write_text("".join(f"{name} {value}\n" for name, value in self.STATE.items()))
        arguments = world.arguments(world.path(output), 2, device="cuda", **SMALL)
        ended = succeed(1, PRETRAIN, *arguments, seconds=300, environment={
            **EMULATED, "TANDEM_NVML_LIBRARY": str(library), "TANDEM_EMULATED_NVML": str(state)})
        return world.step_lines(output), ended.err

    def test_each_step_has_what_the_device_tells_and_nothing_of_what_it_does_not(self):
        steps, log = self.train("sensed", BUILD / "tests" / "libemulated_nvml.so")
        self.assertNotIn("not recorded", log)
        for line in steps:
            self.assertEqual([line[name] for name in ("rank_clock_megahertz", "rank_power_watts", "rank_temperature_celsius",
                                                      "rank_throttle_reasons", "power_watts")], [[2405], [89], [70], [4], 89])
            self.assertAlmostEqual(line["tokens_per_joule"] * 89 / line["tokens_per_second"], 1, delta=1e-4)

    def test_without_a_driver_it_is_told_and_the_run_goes_on(self):
        steps, log = self.train("unsensed", "libno-such-nvml.so")
        self.assertIn("clocks, power and temperature of the device are not recorded: NVML cannot be used", log)
        self.assertFalse(any("rank_clock_megahertz" in line for line in steps))


class Attention(unittest.TestCase):
    def test_what_ran_and_its_rate_stand_in_the_log_in_run_json_and_in_the_answer(self):
        arguments = world.arguments(world.path("paths"), 2, device="cuda", **SMALL, model=WIDE, precision="bf16")
        ended = succeed(1, PRETRAIN, *arguments, "--json", environment=EMULATED, seconds=300)
        report = json.loads((world.path("paths") / "run.json").read_text())["attention"]
        self.assertRegex(report, "^Attention by own flash attention on mma.sync at [0-9.]+ .?FLOP/s.*; AttentionBackward by")
        self.assertIn("attention: " + report, ended.err)
        self.assertRegex(json.loads(ended.out)["attention"], "^Attention by own flash attention on mma.sync at ")

    def test_a_path_that_is_not_there_is_a_usage_error_with_the_reason(self):
        arguments = world.arguments(world.path("no-cudnn"), 1, device="cuda", **SMALL, model=WIDE, attention="cudnn")
        ended = run(1, PRETRAIN, *arguments, environment=EMULATED)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("--attention cudnn cannot run: ", ended.err)


class Writing(unittest.TestCase):
    def test_greedy_text_is_the_cpus(self):
        train_on_cpu("model", 60)
        arguments = ["generate", "--json", "--checkpoint", world.path("model"), "--temperature", 0, "--max-tokens", 24,
                     "--prompt", "Ada sees"]
        expected = succeed(1, "evaluate", *arguments).out
        written = succeed(1, EVALUATE, *arguments, "--device", "cuda", environment=EMULATED, seconds=300).out
        texts = [json.loads(text)[0]["token_ids"] for text in (expected, written)]
        self.assertEqual(*texts)
        self.assertGreater(len(texts[0]), 4)

    def test_loss_is_the_cpus(self):
        train_on_cpu("measured", 20)
        arguments = ["loss", "--json", "--checkpoint", world.path("measured"), "--data", world.val, "--max-tokens", 256]
        losses = [json.loads(succeed(1, program, *arguments, *device, environment=EMULATED).out)[0]["loss"]
                  for program, device in (("evaluate", []), (EVALUATE, ["--device", "cuda"]))]
        self.assertAlmostEqual(losses[1] / losses[0], 1, delta=1e-5)


class ChoiceOfDevice(unittest.TestCase):
    def test_auto_takes_the_gpu_and_says_so(self):
        arguments = world.arguments(world.path("auto"), 1, device="auto", **SMALL)
        self.assertIn("on emulated sm_121", succeed(1, PRETRAIN, *arguments, environment=EMULATED).err)

    def test_a_demanded_gpu_that_is_not_there_is_a_usage_error_with_the_reason(self):
        for ranks in (1, 2):
            ended = run(ranks, "pretrain", *world.arguments(world.path("none"), 1, device="cuda", **SMALL))
            self.assertEqual(ended.code, 2, ended)
            self.assertIn("--device cuda: this build has no CUDA", ended.err)
        for driver, reason in (("none", "no NVIDIA driver"), ("old", "the NVIDIA driver serves CUDA 12.4"),
                               ("no-device", "no CUDA-capable device")):
            ended = run(2, PRETRAIN, *world.arguments(world.path("none"), 1, device="cuda", **SMALL),
                        environment={**EMULATED, "SIMT_DRIVER": driver})
            self.assertEqual(ended.code, 2, ended)
            self.assertIn(reason, ended.err)
        self.assertFalse(world.path("none").exists())

    def test_without_a_driver_auto_takes_the_cpu_and_says_why(self):
        arguments = world.arguments(world.path("fallback"), 2, device="auto", tf32=True, **SMALL)
        ended = succeed(1, PRETRAIN, *arguments, environment={**EMULATED, "SIMT_DRIVER": "none"})
        self.assertIn("--device auto takes the CPU: no NVIDIA driver", ended.err)
        self.assertIn("CPU, kernels for", ended.err)
        self.assertIn("--tf32 has no effect on the CPU", ended.err)

    def test_options_of_the_other_device_are_refused_or_told_of(self):
        matrices = {"matrix_library": "openblas", **SMALL}
        ended = run(1, PRETRAIN, *world.arguments(world.path("idle"), 1, device="cuda", **matrices), environment=EMULATED)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("--matrix-library is for the CPU", ended.err)
        log = succeed(1, PRETRAIN, *world.arguments(world.path("idle"), 1, device="auto", **matrices),
                      environment=EMULATED).err
        self.assertIn("--matrix-library has no effect on the GPU", log)

    def test_an_attention_path_that_cannot_serve_the_model_is_a_usage_error(self):
        ended = run(1, PRETRAIN, *world.arguments(world.path("heads"), 1, device="cuda", attention="mma", **SMALL),
                    environment=EMULATED)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("mma", ended.err)

    def test_ways_through_the_hosts_memory_are_not_ignored_in_silence_where_nccl_exchanges(self):
        own = {**EMULATED, "SIMT_DEVICES": "own"}
        arguments = world.arguments(world.path("ways"), 1, device="cuda", collectives="ring", **SMALL)
        ended = run(2, PRETRAIN, *arguments, "--exchange", "nccl", environment=own)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("--collectives ring is for exchanges through the host's memory, and --exchange nccl", ended.err)
        log = succeed(2, PRETRAIN, *arguments, "--bf16-on-wire", environment=own).err
        self.assertIn("exchanges between the ranks' GPUs: NCCL", log)
        self.assertIn("--collectives ring and --bf16-on-wire has no effect: the ranks' GPUs exchange by NCCL", log)

    def test_too_little_memory_says_what_was_asked_and_what_lowers_it(self):
        ended = run(2, PRETRAIN, *world.arguments(world.path("full"), 1, device="cuda", **SMALL),
                    environment={**EMULATED, "SIMT_MEMORY": "300000"})
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("no memory for", ended.err)
        self.assertIn("--micro-batch", ended.err)
        self.assertIn("activations at the peak", ended.err)


if __name__ == "__main__":
    unittest.main()
