#include "trainer/train/quantization/quantize_file.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "models/weight_only_int8.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/script_file.h"
#include "trainer/train/quantization/layer_reports.h"

namespace narrowcast::quantization {
namespace {

namespace fs = std::filesystem;

void check_paths(const QuantizeOptions& options) {
  const std::string suffix = fs::path(options.input).extension();
  TORCH_CHECK_VALUE(suffix == ".safetensors" || suffix == ".pt", "input: ", options.input,
                    " is neither named *.safetensors, a model file, nor *.pt, a TorchScript module");
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
  files::SavedModel saved = files::load_model(options.input);
  TORCH_CHECK_VALUE(saved.quantization.empty(), "input: ", options.input,
                    " is quantised already: ", saved.quantization);
  models::WeightOnlyInt8QuantHandler handler(saved.model);
  QuantizeReport report = compare(files::state_of(*saved.model), handler.create_quantized_state_dict());
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
  QuantizeReport report = compare(state_of(saved.module), handler.create_quantized_state_dict());
  report.float_layers = handler.layers_that_stay();
  check_has_layers(options.input, report);
  saved.module = handler.convert_for_runtime();
  if (!options.dry_run) {
    files::save_script(options.output, saved);
  }
  return report;
}

}  // namespace

QuantizeReport quantize_file(const QuantizeOptions& options) {
  check_paths(options);
  return options.input.ends_with(".pt") ? quantize_script_file(options) : quantize_model_file(options);
}

}  // namespace narrowcast::quantization
