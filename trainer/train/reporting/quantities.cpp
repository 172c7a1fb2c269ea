#include "trainer/train/reporting/quantities.h"

#include <array>
#include <cmath>
#include <cstdio>

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

}  // namespace

std::string format_count(double count) {
  const Scaled scaled = scale(count);
  return scaled.digits + scaled.prefix;
}

std::string format_bytes(double bytes) {
  const Scaled scaled = scale(bytes);
  return scaled.digits + " " + scaled.prefix + "B";
}

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

}  // namespace narrowcast::reporting
