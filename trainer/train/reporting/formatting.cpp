#include "trainer/train/reporting/formatting.h"

#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>
#include "ops/common/text.h"

namespace narrowcast::reporting {
namespace {

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

struct Scaled {
  std::string digits;
  std::string prefix;
};

Scaled scale(double value) {
  const std::array<const char*, 6> prefixes = {"", "k", "M", "G", "T", "P"};
  size_t index = 0;
  // 999.5 would print as 1000.
  while (value >= 999.5 && index + 1 < prefixes.size()) {
    value /= 1000;
    ++index;
  }
  if (index == 0) {
    return {print("%.0f", value), ""};
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return {print("%.*f", decimals, value), prefixes[index]};
}

std::vector<size_t> column_widths(const std::vector<TableRow>& rows, size_t columns) {
  std::vector<size_t> widths(columns);
  for (const TableRow& row : rows) {
    TORCH_CHECK_VALUE(row.size() == columns, "a row of the table has ", row.size(), " cells instead of ", columns);
    for (size_t i = 0; i < columns; ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  return widths;
}

std::string padded(const std::string& cell, size_t width, char alignment) {
  const std::string blanks(width - cell.size(), ' ');
  return alignment == 'l' ? cell + blanks : blanks + cell;
}

std::string without_blanks_at_the_end(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string format_count(double count) {
  const Scaled scaled = scale(count);
  return scaled.digits + scaled.prefix;
}

std::string format_bytes(double bytes) {
  const Scaled scaled = scale(bytes);
  return scaled.digits + " " + scaled.prefix + "B";
}

std::string format_percent(double share) { return print("%.0f%%", 100 * share); }

std::string format_loss(double loss) {
  const bool is_small = loss != 0 && std::abs(loss) < 0.1;
  return print(is_small ? "%#.4g" : "%.4f", loss);
}

std::string format_accuracy(double accuracy) { return print("%.4f", accuracy); }

std::string format_duration(double seconds) {
  if (seconds < 9.95) {
    return print("%.1f s", seconds);
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) {
    return print("%lld s", static_cast<long long>(whole));
  }
  if (whole < 3600) {
    return print("%lld min %02lld s", static_cast<long long>(whole / 60), static_cast<long long>(whole % 60));
  }
  const int64_t minutes = (whole + 30) / 60;
  return print("%lld h %02lld min", static_cast<long long>(minutes / 60), static_cast<long long>(minutes % 60));
}

std::string aligned_table(const std::vector<TableRow>& rows, std::string_view alignment) {
  const std::vector<size_t> widths = column_widths(rows, alignment.size());
  std::string table;
  for (const TableRow& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += (i == 0 ? "" : "  ") + padded(row[i], widths[i], alignment[i]);
    }
    table += without_blanks_at_the_end(line) + "\n";
  }
  return table;
}

std::string held_out_lines(const HeldOutResults& results) {
  std::string lines;
  const auto add = [&](const char* name, const std::string& value) {
    lines += absl::StrFormat("%-17s%s\n", name, value);
  };
  if (results.loss) add("validation loss", format_loss(*results.loss));
  if (results.accuracy) add("accuracy", format_accuracy(*results.accuracy));
  if (results.bigram_entropy) add("bigram entropy", format_loss(*results.bigram_entropy));
  return lines;
}

std::string plan_text(const nlohmann::json& plan) {
  size_t width = 0;
  for (const auto& [name, value] : plan.items()) {
    width = std::max(width, name.size());
  }
  std::ostringstream text;
  for (const auto& [name, value] : plan.items()) {
    text << name << std::string(width - name.size() + 2, ' ')
         << printable(value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  return text.str();
}

}  // namespace narrowcast::reporting
