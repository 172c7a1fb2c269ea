#include "trainer/train/inference/quantize_file.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <sstream>

#include "ops/common/text.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/script_file.h"
#include "trainer/train/reporting/formatting.h"

namespace narrowcast::inference {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestName = 200;  // bytes of a layer's name in the table

// The name of the layer if the entry `name` is its `tensor`; empty for another entry.
std::optional<std::string> layer_of(const std::string& name, const std::string& tensor) {
  const size_t dot = name.rfind('.');
  const std::string layer = dot == std::string::npos ? "" : name.substr(0, dot);
  return name == models::entry_of(layer, tensor) ? std::optional(layer) : std::nullopt;
}

std::string shown(const std::string& layer) { return layer.empty() ? "the module" : printable(layer, kLongestName); }

double relative_error(const at::Tensor& weight, const at::Tensor& codes, const at::Tensor& scales) {
  const at::Tensor exact = weight.detach().cpu().to(at::kDouble);
  const at::Tensor decoded = codes.to(at::kDouble) * scales.to(at::kDouble).unsqueeze(1);
  const double size = exact.norm().item<double>();
  return size == 0 ? 0 : (decoded - exact).norm().item<double>() / size;
}

LayerReport report_layer(const std::string& name, const models::StateDict& before, const models::StateDict& after) {
  const at::Tensor& weight = before.at(models::entry_of(name, models::kWeight));
  const at::Tensor& codes = after.at(models::entry_of(name, models::kWeight));
  const at::Tensor& scales = after.at(models::entry_of(name, models::kScales));
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

constexpr const char* kNoPackages = "compiled code needs float weights; quantise a TorchScript module instead";

void check_paths(const QuantizeOptions& options) {
  const std::string suffix = files::model_suffix("input", options.input);
  TORCH_CHECK_VALUE(suffix != files::kPackageSuffix, "input: ", options.input, " is a model package: ", kNoPackages);
  TORCH_CHECK_VALUE(fs::path(options.output).extension() == suffix, "output: ", options.output, " must be named *",
                    suffix, ", like the input");
  std::error_code ignored;
  TORCH_CHECK_VALUE(!fs::equivalent(options.input, options.output, ignored), "output: ", options.output,
                    " is the input");
  TORCH_CHECK_VALUE(options.overwrite || !fs::exists(options.output, ignored), "output: ", options.output,
                    " exists already; --overwrite replaces it");
}

// Parameters and buffers by name.
models::StateDict state_of(const torch::jit::Module& module) {
  models::StateDict state;
  for (const auto& parameter : module.named_parameters()) {
    state.emplace(parameter.name, parameter.value);
  }
  for (const auto& buffer : module.named_buffers()) {
    state.emplace(buffer.name, buffer.value);
  }
  return state;
}

void check_has_layers(const std::string& input, const QuantizeReport& report) {
  TORCH_CHECK_VALUE(!report.layers.empty() || !report.float_layers.empty(), "input: ", input,
                    " has no Linear layer to quantise");
  TORCH_CHECK_VALUE(!report.layers.empty(), "input: ", input, " has no Linear layer that can be quantised; ",
                    float_layers_text(report.float_layers, "; "));
}

QuantizeReport quantize_model_file(const QuantizeOptions& options) {
  files::SavedModel saved = files::load_model(options.input, kNoPackages);
  TORCH_CHECK_VALUE(saved.quantization.empty(), "input: ", options.input,
                    " is quantised already: ", saved.quantization);
  models::WeightOnlyInt8QuantHandler handler(saved.model);
  QuantizeReport report = compare_layers(files::state_of(*saved.model), handler.create_quantized_state_dict());
  check_has_layers(options.input, report);
  handler.convert_for_runtime();
  saved.quantization = files::kWeightOnlyInt8;
  if (!options.dry_run) {
    files::save_model(options.output, saved);
  }
  return report;
}

QuantizeReport quantize_script_file(const QuantizeOptions& options) {
  files::SavedScript saved = files::load_script(options.input);
  const models::ScriptWeightOnlyInt8QuantHandler handler(saved.module);
  QuantizeReport report = compare_layers(state_of(saved.module), handler.create_quantized_state_dict());
  report.float_layers = handler.layers_that_stay();
  check_has_layers(options.input, report);
  saved.module = handler.convert_for_runtime();
  if (!options.dry_run) {
    files::save_script(options.output, saved);
  }
  return report;
}

}  // namespace

QuantizeReport compare_layers(const models::StateDict& before, const models::StateDict& after) {
  QuantizeReport report;
  for (const auto& [name, tensor] : after) {
    const auto of_scales = layer_of(name, models::kScales);
    const auto of_weight = layer_of(name, models::kWeight);
    if (of_scales && !before.contains(name) && before.contains(models::entry_of(*of_scales, models::kWeight))) {
      report.layers.push_back(report_layer(*of_scales, before, after));
    } else if (!(of_weight && after.contains(models::entry_of(*of_weight, models::kScales)))) {
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
            " is not quantised: " + printable(layer.reason, 3 * kLongestName);
  }
  return text;
}

QuantizeReport quantize_file(const QuantizeOptions& options) {
  check_paths(options);
  return options.input.ends_with(files::kScriptSuffix) ? quantize_script_file(options) : quantize_model_file(options);
}

}  // namespace narrowcast::inference
