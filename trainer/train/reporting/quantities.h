// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace narrowcast::reporting {

// Three significant digits and a decimal prefix: 7, 41.2k, 1.05M. For counts and rates, >= 0.
std::string format_count(double count);

// The same with a unit: "512 B", "41.2 kB", "1.05 MB".
std::string format_bytes(double bytes);

// "0.4 s", "12 s", "3 min 05 s", "2 h 07 min". For durations >= 0.
std::string format_duration(double seconds);

}  // namespace narrowcast::reporting
