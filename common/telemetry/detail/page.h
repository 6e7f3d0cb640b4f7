#pragma once
// Pages of curves: one file of HTML that needs no network and no script, light or dark as the reader's system is, and
// narrow enough for a phone.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::telemetry::page {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in the order of the abscissa
  std::size_t hue = 0;                            // the number of its colour
  bool dashed = false;
};

struct Chart {
  std::string title;
  std::vector<Series> series;  // one without points is left out
  std::string abscissa = "step";
  bool fromZero = false;      // shares and rates; others show the range that they have
  std::vector<double> marks;  // abscissas at which something happened
};

// What text stands for in HTML.
std::string escaped(std::string_view text);
// A number as people read it: "1,234,567", "0.0123", "1.2e-05"; at most so many digits that count.
std::string readable(double value, int digits = 4);

// Head of the page up to and with its title.
std::string begin(const std::string& title);
std::string end();
// Empty where there is nothing to draw. Neighbouring points are averaged where there are more than can be seen, and of
// a curve that has many, a running median is drawn over them.
std::string drawn(Chart chart);
// Large numbers with their names, side by side.
std::string tiles(const std::vector<std::pair<std::string, std::string>>& namesAndValues);
// A table without the columns that hold nothing but "-" below their head.
std::vector<std::vector<std::string>> withoutEmptyColumns(std::vector<std::vector<std::string>> rows);
// The first row holds the heads; cells are text. Empty where there are no other rows.
std::string table(const std::string& title, const std::vector<std::vector<std::string>>& rows);

}  // namespace tandem::telemetry::page
