#include "trainer/train/files/model_file.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include <narrowcast/char_gpt.h>
#include <narrowcast/errors.h>
#include <narrowcast/models.h>
#include "models/imported/script_model.h"
#include "models/quantization/weight_only_int8.h"
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/gpt2_layout.h"
#include "trainer/train/files/safetensors.h"
#include "trainer/train/files/weight_files.h"

namespace narrowcast::files {
namespace {

constexpr const char* kFormatVersion = "1";
constexpr size_t kLongestReason = 1000;  // of a model's error about options from the file

// The row of the model `name`; an empty row for a model that is not bundled.
const models::ModelRow& model_row(const std::string& name) {
  static const models::ModelRow other = {};
  const std::vector<std::string> bundled = models::model_names();
  return std::ranges::find(bundled, name) == bundled.end() ? other : models::model_row(name);
}

bool is_gpt2(const std::string& name) { return model_row(name).is_gpt2; }

// The layout of GPT-2 has no quantised weights.
bool is_written_as_gpt2(const SavedModel& saved) { return is_gpt2(saved.name) && saved.quantization.empty(); }

// Whether the vocabulary has an allowed number of entries for the model's tokens.
bool vocabulary_fits(const SavedModel& saved) {
  const models::ModelOptions options = saved.model->options();
  const auto size = options.find("vocabulary_size");
  if (saved.vocabulary.empty() || size == options.end()) {
    return true;
  }
  return model_row(saved.name).fits(size->second, std::ssize(saved.vocabulary));
}

std::string to_text(const std::string& path, const nlohmann::json& value) {
  try {
    return value.dump();
  } catch (const nlohmann::json::type_error&) {
    TORCH_CHECK_VALUE(false, path, ": cannot be written: the vocabulary or a name is not UTF-8");
  }
}

const std::string& metadata_value(const std::string& path, const Safetensors& content, const std::string& key) {
  const auto entry = content.metadata.find(key);
  NARROWCAST_CHECK_INPUT(entry != content.metadata.end(), path, ": is not a model of narrowcast: its metadata lacks '",
                         key, "'");
  return entry->second;
}

nlohmann::json parse_metadata(const std::string& path, const Safetensors& content, const std::string& key) {
  const std::string& text = metadata_value(path, content, key);
  return parse_json(text, c10::str(path, ": metadata '", key, "'"));
}

std::vector<std::string> read_vocabulary(const std::string& path, const Safetensors& content) {
  const nlohmann::json entries = parse_metadata(path, content, "vocabulary");
  NARROWCAST_CHECK_INPUT(entries.is_array(), path, ": metadata 'vocabulary' is not an array");
  std::vector<std::string> vocabulary;
  for (const nlohmann::json& entry : entries) {
    NARROWCAST_CHECK_INPUT(entry.is_string(), path, ": metadata 'vocabulary' must hold only strings");
    vocabulary.push_back(entry.get<std::string>());
  }
  return vocabulary;
}

int64_t count_elements(const models::StateDict& tensors) {
  int64_t count = 0;
  for (const auto& [name, tensor] : tensors) {
    count += tensor.numel();
  }
  return count;
}

// Throws c10::ValueError naming the model and the option that is not an int64.
models::ModelOptions to_options(const std::string& model, const nlohmann::json& values) {
  TORCH_CHECK_VALUE(values.is_object(), model, ": options must be a JSON object, but are ", values.dump());
  models::ModelOptions options;
  for (const auto& [name, value] : values.items()) {
    const bool too_large =
        value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
    TORCH_CHECK_VALUE(value.is_number_integer() && !too_large, model, ": option ", name, " must be an integer, but is ",
                      value.dump());
    options.emplace(name, value.get<int64_t>());
  }
  return options;
}

// A few bytes of options can require more memory than there is. So a model that is much larger than its file is not
// created. The missing tensors are reported later, one by one.
constexpr int64_t kHarmlessParameters = int64_t{1} << 20;

void check_proportion(const std::string& path, int64_t elements, const std::string& name,
                      const models::ModelOptions& options) {
  const int64_t parameters = models::count_parameters(name, options);
  NARROWCAST_CHECK_INPUT(parameters <= kHarmlessParameters + 2 * elements, path, ": holds ", elements,
                         " numbers, but a ", name, " with its options has ", parameters, " parameters");
}

// Calls `make`. A model's error about options from the file is an error of the file.
template <class Make>
auto with_options_of(const std::string& path, const Make& make) {
  try {
    return make();
  } catch (const c10::ValueError& error) {
    NARROWCAST_CHECK_INPUT(false, path, ": ", printable(error.what_without_backtrace(), kLongestReason));
  }
}

std::shared_ptr<models::Model> make_model(const std::string& path, const Safetensors& content, const std::string& name,
                                          const nlohmann::json& values) {
  return with_options_of(path, [&] {
    const models::ModelOptions options = to_options(name, values);
    check_proportion(path, count_elements(content.tensors), name, options);
    return models::create_model(name, options);
  });
}

void check_version(const std::string& path, const Safetensors& content) {
  const std::string& version = metadata_value(path, content, "format_version");
  NARROWCAST_CHECK_INPUT(version == kFormatVersion, path, ": has the format version ", in_quotes(version),
                         ", but this program reads version ", kFormatVersion);
}

// Converts the model to the kinds of layers in the file's metadata.
void convert(const std::string& path, const Safetensors& content, SavedModel& saved) {
  const auto entry = content.metadata.find("quantization");
  if (entry == content.metadata.end()) {
    return;
  }
  saved.quantization = entry->second;
  NARROWCAST_CHECK_INPUT(saved.quantization == kWeightOnlyInt8, path, ": has the quantization ",
                         in_quotes(saved.quantization), ", but this program reads ", kWeightOnlyInt8, " only");
  models::WeightOnlyInt8QuantHandler(saved.model).convert_for_runtime();
}

// Checks every tensor of the file against the model's before anything is copied.
void check_state(const std::string& path, const models::StateDict& from, const models::StateDict& to) {
  for (const auto& [name, tensor] : from) {
    NARROWCAST_CHECK_INPUT(to.contains(name), path, ": tensor ", in_quotes(name), " does not belong to the model");
  }
  for (const auto& [name, tensor] : to) {
    const auto found = from.find(name);
    NARROWCAST_CHECK_INPUT(found != from.end(), path, ": the model's tensor '", name, "' is missing");
    NARROWCAST_CHECK_INPUT(found->second.sizes() == tensor.sizes(), path, ": tensor '", name, "' has the shape ",
                           found->second.sizes(), ", but the model's has ", tensor.sizes());
    NARROWCAST_CHECK_INPUT(found->second.scalar_type() == tensor.scalar_type(), path, ": tensor '", name,
                           "' has the dtype ", found->second.scalar_type(), ", but the model's has ",
                           tensor.scalar_type());
  }
}

void copy_state(const std::string& path, const models::StateDict& from, const models::StateDict& to) {
  check_state(path, from, to);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : to) {
    tensor.copy_(from.at(name));
  }
}

// at::equal supports only some dtypes, and for it NaN is not equal to itself.
bool have_equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.flatten().view(at::kByte).equal(b.flatten().view(at::kByte));
}

// A tensor may be in the file under any of its names, or under several.
models::StateDict without_aliases(const std::string& path, models::StateDict tensors,
                                  const std::map<std::string, std::string>& aliases) {
  for (const auto& [alias, first] : aliases) {
    const auto further = tensors.extract(alias);
    if (further.empty()) continue;
    const at::Tensor& tensor = further.mapped();
    const at::Tensor& known = tensors.emplace(first, tensor).first->second;
    NARROWCAST_CHECK_INPUT(have_equal_bits(known, tensor), path, ": tensors '", first, "' and '", alias,
                           "' differ, but the model has one tensor for both");
  }
  return tensors;
}

// Whether files of this model contain the state_dict() of a class in Python, which both kinds of imported models have.
bool is_of_imported(const std::string& name) { return name == models::kScript || name == models::kPackage; }

// Removes tensors that the file also has under a name of the model: a TorchScript module's file has a buffer under all
// its names, but a package does not know those that state_dict() lacks.
void drop_unknown_names(const models::StateDict& model, models::StateDict& tensors) {
  std::erase_if(tensors, [&](const auto& item) {
    return !model.contains(item.first) && std::ranges::any_of(model, [&](const auto& known) {
      const auto found = tensors.find(known.first);
      return found != tensors.end() && have_equal_bits(found->second, item.second);
    });
  });
}

// Stores the metadata of a model file in `initial`, for a training of that model.
void read_metadata(const Safetensors& content, const models::ModelRow& row, const std::string& option,
                   InitialState& initial) {
  const std::string& path = initial.path;
  check_version(path, content);
  const std::string& name = metadata_value(path, content, "model");
  const bool fits = name == row.name || (row.is_gpt2 && name == models::CharGpt::kName) ||
                    (is_of_imported(name) && is_of_imported(row.name));
  TORCH_CHECK_VALUE(fits, option, ": ", path, " holds the model ", printable(name, kLongestReason), ", not ", row.name);
  TORCH_CHECK_VALUE(!content.metadata.contains("quantization"), option, ": ", path,
                    " is quantised: its weights cannot be trained");
  initial.is_of_other_kind = is_of_imported(name) && name != row.name;
  initial.vocabulary = read_vocabulary(path, content);
  initial.options = with_options_of(path, [&] { return to_options(name, parse_metadata(path, content, "options")); });
}

// Removes the model's buffers that are not among `tensors` from its state. Returns their names.
std::vector<std::string> take_missing_buffers(const models::StateDict& tensors, const models::Model& model,
                                              models::StateDict& state) {
  std::vector<std::string> missing;
  for (const auto& buffer : model.named_buffers()) {
    if (!tensors.contains(buffer.key()) && state.erase(buffer.key()) > 0) missing.push_back(buffer.key());
  }
  return missing;
}

// Tensors that the model can hold in float32 become float32.
models::StateDict widened(models::StateDict from, const models::StateDict& to) {
  for (auto& [name, tensor] : from) {
    const auto found = to.find(name);
    const bool is_narrow = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
    if (is_narrow && found != to.end() && found->second.scalar_type() == at::kFloat) {
      tensor = tensor.to(at::kFloat);
    }
  }
  return from;
}

}  // namespace

std::string model_suffix(const std::string& option, const std::string& path) {
  if (path.ends_with(kModelSuffix)) {
    return kModelSuffix;
  }
  if (path.ends_with(kPackageSuffix)) {
    return kPackageSuffix;
  }
  TORCH_CHECK_VALUE(path.ends_with(kScriptSuffix), option, ": ", path, " must be named *", kModelSuffix,
                    " (a model file), *", kScriptSuffix, " (a TorchScript module) or *", kPackageSuffix,
                    " (a model package)");
  return kScriptSuffix;
}

models::StateDict state_of(const torch::nn::Module& module) {
  models::StateDict state;
  std::set<const at::TensorImpl*> seen;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        state.emplace(item.key(), item.value());
      }
    }
  }
  return state;
}

std::vector<std::string> linear_layer_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (item.value()->as<torch::nn::Linear>() != nullptr) {
      names.push_back(item.key());
    }
  }
  return names;
}

void save_model(const std::string& path, const SavedModel& saved) {
  TORCH_CHECK_VALUE(saved.model != nullptr, path, ": there is no model to save");
  TORCH_CHECK_VALUE(vocabulary_fits(saved), path, ": the vocabulary has ", saved.vocabulary.size(),
                    " entries, but the options are ", to_text(path, saved.model->options()));
  std::vector<std::string> linear_layers = linear_layer_names(*saved.model);
  if (is_written_as_gpt2(saved)) {
    std::ranges::transform(linear_layers, linear_layers.begin(), gpt2_name);
  }
  std::map<std::string, std::string> metadata = {{"format_version", kFormatVersion},
                                                 {"model", saved.name},
                                                 {"options", to_text(path, saved.model->options())},
                                                 {"vocabulary", to_text(path, saved.vocabulary)},
                                                 {"linear_layers", to_text(path, linear_layers)}};
  if (!saved.quantization.empty()) {
    metadata.emplace("quantization", saved.quantization);
  }
  models::StateDict tensors = state_of(*saved.model);
  for (const std::string& name : saved.model->transient_buffers()) {
    tensors.erase(name);
  }
  for (const auto& [alias, first] : saved.model->aliases()) {
    if (const auto tensor = tensors.find(first); tensor != tensors.end()) tensors.emplace(alias, tensor->second);
  }
  if (is_written_as_gpt2(saved)) {
    tensors = in_gpt2_layout(tensors);
    metadata.emplace("format", "pt");
  }
  write_safetensors(path, {.tensors = std::move(tensors), .metadata = std::move(metadata)});
}

SavedModel load_model(const std::string& path, const std::string& advice_for_package) {
  const Safetensors content = read_safetensors(path);
  check_version(path, content);
  SavedModel saved;
  saved.name = metadata_value(path, content, "model");
  TORCH_CHECK_VALUE(saved.name != models::kScript, path,
                    ": holds the tensors of a TorchScript module without its code; ", "use the *", kScriptSuffix,
                    " that was written beside it");
  TORCH_CHECK_VALUE(saved.name != models::kPackage, path, ": holds the tensors of a model package without its code; ",
                    advice_for_package);
  saved.vocabulary = read_vocabulary(path, content);
  saved.model = make_model(path, content, saved.name, parse_metadata(path, content, "options"));
  NARROWCAST_CHECK_INPUT(vocabulary_fits(saved), path, ": the vocabulary has ", saved.vocabulary.size(),
                         " entries, but the options are ", to_text(path, saved.model->options()));
  convert(path, content, saved);
  const models::StateDict state = state_of(*saved.model);
  if (is_gpt2(saved.name) && has_gpt2_layout(content.tensors)) {
    copy_state(path, without_gpt2_extras(path, content.tensors), in_gpt2_layout(state));
  } else {
    copy_state(path, content.tensors, state);
  }
  return saved;
}

InitialState read_initial_state(const std::string& path, const std::string& model, const std::string& option) {
  const models::ModelRow& row = models::any_model_row(model);
  Weights weights = read_weights(option, path);
  Safetensors& content = weights.content;
  InitialState initial = {.path = path, .files = std::move(weights.files)};
  initial.has_metadata = content.metadata.contains("format_version");
  if (initial.has_metadata) {
    read_metadata(content, row, option, initial);
  }
  initial.has_gpt2_layout = row.is_gpt2 && has_gpt2_layout(content.tensors);
  if (!initial.has_gpt2_layout) {
    initial.tensors = std::move(content.tensors);
    return initial;
  }
  initial.tensors = without_gpt2_extras(path, content.tensors);
  for (const auto& [name, value] : gpt2_options(path, initial.tensors)) {
    initial.options[name] = value;
  }
  return initial;
}

models::ModelOptions options_with(const InitialState& initial, const models::ModelOptions& given) {
  models::ModelOptions options = initial.options;
  for (const auto& [name, value] : given) {
    const auto [option, is_new] = options.emplace(name, value);
    if (initial.has_gpt2_layout && name == "context" && value < option->second) {
      option->second = value;  // load_initial_state takes the first positions.
    }
    TORCH_CHECK_VALUE(option->second == value, name, ": is ", value, ", but ", option->second, " in ", initial.path,
                      ", the file of init_from");
  }
  return options;
}

void check_size(const InitialState& initial, const std::string& model, const models::ModelOptions& options) {
  check_proportion(initial.path, count_elements(initial.tensors), model, options);
}

std::vector<std::string> load_initial_state(const InitialState& initial, models::Model& model) {
  const models::StateDict own = state_of(model);
  models::StateDict state = initial.has_gpt2_layout ? in_gpt2_layout(own) : own;
  models::StateDict tensors = initial.has_gpt2_layout ? with_positions_of(initial.tensors, state)
                                                      : without_aliases(initial.path, initial.tensors, model.aliases());
  if (initial.is_of_other_kind) drop_unknown_names(own, tensors);
  for (const std::string& name : model.transient_buffers()) {
    if (!tensors.contains(name)) state.erase(name);
  }
  std::vector<std::string> kept;
  if (!initial.has_metadata || initial.is_of_other_kind) {
    kept = take_missing_buffers(tensors, model, state);
  }
  copy_state(initial.path, widened(tensors, state), state);
  return kept;
}

}  // namespace narrowcast::files
