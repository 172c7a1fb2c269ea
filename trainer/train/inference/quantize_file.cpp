#include "trainer/train/quantization/layer_reports.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>

#include "trainer/base/files/printable.h"
#include "trainer/train/reporting/quantities.h"

namespace narrowcast::quantization {
namespace {

std::string entry(const std::string& layer, const char* tensor) {
  return layer.empty() ? tensor : layer + "." + tensor;
}

// The layer whose `tensor` the entry `name` is; nothing if it is another entry.
std::optional<std::string> layer_of(const std::string& name, const std::string& tensor) {
  if (name == tensor) return "";
  if (!name.ends_with("." + tensor)) return std::nullopt;
  return name.substr(0, name.size() - tensor.size() - 1);
}

constexpr size_t kLongestName = 200;  // bytes of a layer's name in the table

std::string shown(const std::string& layer) { return layer.empty() ? "the module" : printable(layer, kLongestName); }

double relative_error(const at::Tensor& weight, const at::Tensor& codes, const at::Tensor& scales) {
  const at::Tensor exact = weight.detach().cpu().to(at::kDouble);
  const at::Tensor decoded = codes.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(1);
  const double size = exact.norm().item<double>();
  return size == 0 ? 0 : (decoded - exact).norm().item<double>() / size;
}

LayerReport report_layer(const std::string& name, const models::StateDict& before, const models::StateDict& after) {
  const at::Tensor& weight = before.at(entry(name, "weight"));
  const at::Tensor& codes = after.at(entry(name, "weight"));
  const at::Tensor& scales = after.at(entry(name, "scales"));
  return {.name = name,
          .bytes_before = static_cast<int64_t>(weight.nbytes()),
          .bytes_after = static_cast<int64_t>(codes.nbytes() + scales.nbytes()),
          .relative_error = relative_error(weight, codes, scales)};
}

// One line of the table.
struct Line {
  std::string name;
  int64_t before;
  int64_t after;
  std::string error;
};

std::string line_text(const Line& line, size_t width) {
  std::ostringstream text;
  text << std::left << std::setw(static_cast<int>(width)) << line.name << std::right << std::setw(12)
       << reporting::format_bytes(static_cast<double>(line.before)) << std::setw(12)
       << reporting::format_bytes(static_cast<double>(line.after));
  if (!line.error.empty()) {
    text << std::setw(17) << line.error;
  }
  text << "\n";
  return text.str();
}

std::string error_text(double error) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(5) << error;
  return text.str();
}

}  // namespace

QuantizeReport compare(const models::StateDict& before, const models::StateDict& after) {
  QuantizeReport report;
  for (const auto& [name, tensor] : after) {
    const auto of_scales = layer_of(name, "scales");
    const auto of_weight = layer_of(name, "weight");
    if (of_scales && !before.contains(name) && before.contains(entry(*of_scales, "weight"))) {
      report.layers.push_back(report_layer(*of_scales, before, after));
    } else if (!(of_weight && after.contains(entry(*of_weight, "scales")))) {
      report.other_bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return report;
}

std::string report_text(const QuantizeReport& report) {
  std::vector<Line> lines;
  int64_t before = report.other_bytes;
  int64_t after = report.other_bytes;
  size_t width = 20;
  for (const LayerReport& layer : report.layers) {
    lines.push_back({shown(layer.name), layer.bytes_before, layer.bytes_after, error_text(layer.relative_error)});
    before += layer.bytes_before;
    after += layer.bytes_after;
    width = std::max(width, lines.back().name.size() + 1);
  }
  lines.push_back({"all other tensors", report.other_bytes, report.other_bytes, "-"});
  lines.push_back({"sum", before, after, ""});
  std::ostringstream text;
  text << std::left << std::setw(static_cast<int>(width)) << "layer" << std::right << std::setw(12) << "before"
       << std::setw(12) << "after" << std::setw(17) << "relative error"
       << "\n";
  for (const Line& line : lines) {
    text << line_text(line, width);
  }
  if (!report.float_layers.empty()) text << float_layers_text(report.float_layers, "\n") << "\n";
  return text.str();
}

std::string float_layers_text(const std::vector<models::FloatLayer>& layers, const std::string& separator) {
  std::string text;
  for (const models::FloatLayer& layer : layers) {
    text += (text.empty() ? "" : separator) + shown(layer.name) +
            " stays as it is: " + printable(layer.reason, 3 * kLongestName);
  }
  return text;
}

}  // namespace narrowcast::quantization
