// Parses Prometheus' text format by its grammar
// (https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details).
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>

namespace narrowcast::testing {

// A metric with one sample.
struct PrometheusMetric {
  std::string type;
  std::string help;
  std::map<std::string, std::string> labels;
  double value = 0;
};

inline void require_of_format(bool condition, const std::string& line) {
  if (!condition) throw std::runtime_error("not in Prometheus' text format: " + line);
}

// Parses the text between the braces.
inline std::map<std::string, std::string> parse_labels(std::string text) {
  static const std::regex label(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|$))re");
  std::map<std::string, std::string> labels;
  std::smatch match;
  while (!text.empty()) {
    require_of_format(std::regex_search(text, match, label, std::regex_constants::match_continuous), text);
    std::string value;
    const std::string escaped = match[2];
    for (size_t i = 0; i < escaped.size(); ++i) {
      const bool is_escape = escaped[i] == '\\';
      i += is_escape ? 1 : 0;
      value += is_escape && escaped[i] == 'n' ? '\n' : escaped[i];
    }
    require_of_format(labels.emplace(match[1], value).second, text);
    text = match.suffix();
  }
  return labels;
}

inline double parse_sample(const std::string& text, const std::string& line) {
  if (text == "NaN") return std::nan("");
  if (text == "+Inf" || text == "-Inf") return (text == "+Inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
  size_t read = 0;
  const double value = std::stod(text, &read);
  require_of_format(read == text.size() && std::isfinite(value), line);
  return value;
}

// Metrics by name. The text must have HELP, TYPE and one sample of each metric, in this order. Throws
// std::runtime_error for anything else, for a counter whose name does not end in _total, and for another metric whose
// name does.
inline std::map<std::string, PrometheusMetric> parse_prometheus(const std::string& text) {
  static const std::regex help(R"re(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\\\n]+))re");
  static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary|untyped)");
  static const std::regex sample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+))re");
  require_of_format(text.ends_with('\n'), "the last line has no end");
  std::map<std::string, PrometheusMetric> metrics;
  std::istringstream lines(text);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    require_of_format(std::regex_match(line, match, help), line);
    const std::string name = match[1];
    PrometheusMetric metric;
    metric.help = match[2];
    require_of_format(std::getline(lines, line) && std::regex_match(line, match, type) && match[1] == name, line);
    metric.type = match[2];
    require_of_format(name.ends_with("_total") == (metric.type == "counter"), line);
    require_of_format(std::getline(lines, line) && std::regex_match(line, match, sample) && match[1] == name, line);
    metric.labels = parse_labels(match[2]);
    metric.value = parse_sample(match[3], line);
    require_of_format(metrics.emplace(name, metric).second, line);
  }
  return metrics;
}

}  // namespace narrowcast::testing
