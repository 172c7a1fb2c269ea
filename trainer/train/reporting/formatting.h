// Numbers and tables formatted for people.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::reporting {

// Three significant digits and a decimal prefix: 7, 41.2k, 1.05M. For counts and rates, >= 0.
std::string format_count(double count);

// The same with a unit: "512 B", "41.2 kB", "1.05 MB".
std::string format_bytes(double bytes);

// "41%". The share is 0 to 1.
std::string format_percent(double share);

// A loss, of any unit and sign: with four decimals, "2.3026"; below a tenth with four significant digits, "0.04123",
// "4.120e-05". report.html.in has the same rule.
std::string format_loss(double loss);

// "0.9875". A share of right answers, 0 to 1.
std::string format_accuracy(double accuracy);

// "0.4 s", "12 s", "3 min 05 s", "2 h 07 min". For durations >= 0.
std::string format_duration(double seconds);

// The cells of one row.
using TableRow = std::vector<std::string>;

// One line per row, each with a line feed; two blanks between columns. Column i is aligned to the left if alignment[i]
// is 'l', to the right if it is 'r'. Each row has one cell per letter of `alignment`.
std::string aligned_table(const std::vector<TableRow>& rows, std::string_view alignment);

// Results on held-out data; unknown ones are empty.
struct HeldOutResults {
  std::optional<double> loss = std::nullopt;            // a cross entropy in nats
  std::optional<double> accuracy = std::nullopt;        // 0 to 1
  std::optional<double> bigram_entropy = std::nullopt;  // of the data themselves, in nats
};

// A line for each, for people, in the columns of all lines of results: "validation loss  2.3026".
std::string held_out_lines(const HeldOutResults& results);

// One "name  value" line per entry of a plan, for people.
std::string plan_text(const nlohmann::json& plan);

}  // namespace narrowcast::reporting
