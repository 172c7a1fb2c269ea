#include "models/imported/package_manifest.h"

#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/safetensors_header.h"

namespace narrowcast::models {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr const char* kBatch = "batch";  // the size that stands for the batch size
constexpr size_t kLongestValue = 100;    // of a value in a message

// Reads values of a manifest; errors name the file and the key.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  template <class Condition, class... Parts>
  void check(const Condition& condition, const Parts&... parts) const {
    NARROWCAST_CHECK_INPUT(condition, path_, ": its manifest ", parts...);
  }

  std::string name(const json& object, const char* key) const {
    auto text = object.at(key).get<std::string>();
    check(!text.empty(), "has an empty ", key);
    return text;
  }

  // The name of a parameter or buffer: names of modules and the tensor's own between dots.
  std::string tensor_name(std::string name) const {
    const bool has_empty_part = ("." + name + ".").find("..") != std::string::npos;
    check(!has_empty_part, "has a tensor of the invalid name ", in_quotes(name));
    return name;
  }

  int64_t integer(const json& object, const char* key) const {
    const json& value = object.at(key);
    check(is_integer(value), "has an invalid ", key, ": ", shown(value));
    return value.get<int64_t>();
  }

  double label_smoothing(const json& object) const {
    const double share = object.value("label_smoothing", 0.0);
    check(0 <= share && share < 1, "has an invalid label_smoothing: ", share);
    return share;
  }

  std::vector<int64_t> sizes(const json& array, int64_t instead_of_batch) const {
    check(array.is_array() && array.size() <= files::kMostDimensions, "has an invalid shape: ", shown(array));
    std::vector<int64_t> sizes;
    for (const json& size : array) {
      const bool is_open = size.is_null() || size == kBatch;
      check(is_open ? instead_of_batch < 0 : is_integer(size), "has an invalid size: ", shown(size));
      sizes.push_back(is_open ? instead_of_batch : size.get<int64_t>());
      check(is_open || sizes.back() >= 0, "has an invalid size: ", shown(size));
    }
    return sizes;
  }

  c10::ScalarType dtype(const json& object) const {
    const auto name = object.at("dtype").get<std::string>();
    const std::optional<c10::ScalarType> dtype = files::dtype_of_name(name);
    check(dtype.has_value(), "has an unknown dtype: ", printable(name, kLongestValue));
    return *dtype;
  }

  PackagedInput input(const json& object) const {
    const std::vector<int64_t> all = sizes(object.at("shape"), -1);
    check(!all.empty() && all[0] == -1 && std::count(all.begin(), all.end(), -1) == 1,
          "has an input whose first size alone should be '", kBatch, "': ", shown(object.at("shape")));
    PackagedInput input = {.sample_shape = {all.begin() + 1, all.end()}, .dtype = dtype(object)};
    for (const json& entry : object.value("ranges", json::array())) {
      input.ranges.push_back(range(entry, input.sample_shape));
    }
    return input;
  }

  PackagedRange range(const json& object, const std::vector<int64_t>& sample_shape) const {
    PackagedRange range = {.least = integer(object, "least"), .most = integer(object, "most")};
    if (!object.at("ignored").is_null()) range.ignored = integer(object, "ignored");
    const json& slices = object.at("slices");
    check(range.least <= range.most && slices.is_array() && slices.size() == sample_shape.size(),
          "has an invalid range: ", shown(object));
    for (size_t i = 0; i < slices.size(); ++i) {
      const std::vector<int64_t> numbers = sizes(slices[i], 0);
      check(numbers.size() == 3 && numbers[0] < numbers[1] && numbers[1] <= sample_shape[i] && 1 <= numbers[2] &&
                numbers[2] <= numbers[1],
            "has an invalid slice: ", shown(slices[i]));
      range.slices.push_back({.begin = numbers[0], .end = numbers[1], .step = numbers[2]});
    }
    return range;
  }

  PackagedTensor tensor(const json& object) const {
    using Role = PackagedTensor::Role;
    const auto role = object.at("role").get<std::string>();
    check(role == "trained" || role == "frozen" || role == "buffer", "has a tensor of the unknown role ",
          printable(role, kLongestValue));
    PackagedTensor tensor = {.name = tensor_name(object.at("name").get<std::string>()),
                             .role = role == "trained"  ? Role::kTrained
                                     : role == "frozen" ? Role::kFrozen
                                                        : Role::kBuffer,
                             .shape = sizes(object.at("shape"), 0),
                             .dtype = dtype(object)};
    tensor.is_unused = tensor.role == Role::kTrained && object.value("unused", false);
    tensor.is_persistent = tensor.role != Role::kBuffer || object.value("persistent", true);
    check(tensor.role != Role::kTrained || tensor.dtype == c10::ScalarType::Float, "has the trained parameter ",
          printable(tensor.name, kLongestValue), " of another dtype than F32");
    check(files::dense_bytes(tensor.dtype, tensor.shape).has_value(),
          "has a tensor that is too large: ", printable(tensor.name, kLongestValue));
    return tensor;
  }

  PackagedGraph graph(const json& object) const {
    PackagedGraph graph = {.least_batch = integer(object.at("batch"), "min"),
                           .most_batch = integer(object.at("batch"), "max")};
    check(1 <= graph.least_batch && graph.least_batch <= graph.most_batch,
          "has an invalid range of batch sizes: ", shown(object.at("batch")));
    const json& outputs = object.at("outputs");
    check(outputs.is_array() && !outputs.empty() && outputs[0].at("role") == "loss",
          "has a graph that does not return its loss first");
    for (size_t i = 1; i < outputs.size(); ++i) {
      add_output(outputs[i], graph);
    }
    return graph;
  }

  static std::string shown(const json& value) {
    return printable(value.dump(-1, ' ', false, json::error_handler_t::replace), kLongestValue);
  }

 private:
  // Whether it is a whole number that an int64_t can hold.
  static bool is_integer(const json& value) {
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > kMost);
  }

  void add_output(const json& output, PackagedGraph& graph) const {
    const auto role = output.at("role").get<std::string>();
    if (role == "gradient") {
      check(graph.buffers.empty() && graph.signals.empty(), "has a gradient after buffers or signals");
      graph.gradients.push_back(name(output, "name"));
    } else if (role == "buffer") {
      check(graph.signals.empty(), "has a buffer after signals");
      graph.buffers.push_back(name(output, "name"));
    } else if (role == "signal") {
      const std::string parameter = name(output, "name");
      check(graph.signals.emplace(parameter, output.value("kept", false)).second, "has two signals of ",
            printable(parameter, kLongestValue));
    } else {
      check(role == "outputs" && !graph.outputs, "has a graph with an output of the role ",
            printable(role, kLongestValue));
      graph.outputs = sizes(output.at("shape"), -1);
    }
  }

  const std::string& path_;
};

std::vector<std::string> names_of(const PackageManifest& manifest, PackagedTensor::Role role) {
  std::vector<std::string> names;
  for (const PackagedTensor& tensor : manifest.state) {
    if (tensor.role == role) names.push_back(tensor.name);
  }
  return names;
}

// The names and the outputs of graphs must fit the state.
void check_fits(const PackageManifest& manifest, const Reader& reader) {
  std::set<std::string> names;
  for (const PackagedTensor& tensor : manifest.state) {
    reader.check(names.insert(tensor.name).second, "has two tensors ", printable(tensor.name, kLongestValue));
  }
  for (const auto& [alias, name] : manifest.tied) {
    reader.check(names.contains(name) && !names.contains(reader.tensor_name(alias)), "has the invalid tied tensor ",
                 printable(alias, kLongestValue));
  }
  reader.check(manifest.train.gradients == names_of(manifest, PackagedTensor::Role::kTrained),
               "has a training step whose gradients are not those of the trained parameters");
  const std::vector<std::string> buffers = names_of(manifest, PackagedTensor::Role::kBuffer);
  for (const std::string& name : manifest.train.buffers) {
    reader.check(std::ranges::find(buffers, name) != buffers.end(), "has a training step that changes ",
                 printable(name, kLongestValue), ", which is not a buffer");
  }
  for (const auto& [name, is_kept] : manifest.train.signals) {
    reader.check(names.contains(name), "has a training step that reports the gradient of the unknown tensor ",
                 printable(name, kLongestValue));
  }
  for (const PackagedTensor& tensor : manifest.state) {
    const bool has_gradient = tensor.role == PackagedTensor::Role::kTrained && !tensor.is_unused;
    reader.check(manifest.train.signals.contains(tensor.name) == has_gradient, "has a training step that ",
                 has_gradient ? "does not report" : "reports", " the gradient of ",
                 printable(tensor.name, kLongestValue));
  }
  reader.check(!manifest.train.outputs && manifest.evaluate.signals.empty() && manifest.evaluate.gradients.empty() &&
                   manifest.evaluate.buffers.empty(),
               "has graphs that return tensors of unexpected roles");
  const bool is_named = manifest.loss != "module" && manifest.loss != "custom";
  reader.check(!is_named || failure_of([&] { parse_loss(manifest.loss); }).empty(), "has the unknown loss ",
               printable(manifest.loss, kLongestValue));
  reader.check((manifest.loss == "module") != manifest.evaluate.outputs.has_value(), "has the loss ",
               printable(manifest.loss, kLongestValue), ", which does not fit its evaluation's outputs");
  const bool has_classes = manifest.loss == to_string(Loss::kCrossEntropy);
  reader.check(!has_classes || (manifest.evaluate.outputs->size() >= 2 && manifest.evaluate.outputs->back() >= 1),
               "has outputs without a fixed number of classes");
}

// The numbers of "2.11.0+cu130"; zeros if there are none.
std::array<int64_t, 3> numbers_of(std::string_view version) {
  std::array<int64_t, 3> numbers = {};
  const char* place = version.data();
  const char* const end = version.data() + version.size();
  for (int64_t& number : numbers) {
    const auto [next, error] = std::from_chars(place, end, number);
    if (error != std::errc() || next == end || *next != '.') break;
    place = next + 1;
  }
  return numbers;
}

std::string machine() {
  utsname names = {};
  return ::uname(&names) == 0 ? names.machine : "";
}

#ifdef __x86_64__  // The builtin function exists on this kind of processor only.
bool has_instruction_set(const std::string& name) {
  return (name == "AVX2" && __builtin_cpu_supports("x86-64-v3")) ||
         (name == "AVX512" && __builtin_cpu_supports("x86-64-v4"));
}
#else
bool has_instruction_set(const std::string& name) {
  return name == at::get_cpu_capability() || (name == "asimd" && machine() == "aarch64");
}
#endif

}  // namespace

PackageManifest parse_manifest(std::string_view text, const std::string& path) {
  const json object = files::parse_json(text, path + ": its manifest");
  const Reader reader(path);
  try {
    const int64_t format = reader.integer(object, "format");
    reader.check(format == kFormat, "has the format ", format, ", but this program reads ", kFormat);
    PackageManifest manifest = {.module = reader.name(object, "module"),
                                .torch = reader.name(object, "torch"),
                                .device = reader.name(object, "device"),
                                .machine = reader.name(object, "machine"),
                                .instruction_set = reader.name(object, "instruction_set"),
                                .loss = reader.name(object, "loss"),
                                .label_smoothing = reader.label_smoothing(object),
                                .inputs = reader.input(object.at("inputs")),
                                .targets = reader.input(object.at("targets")),
                                .tied = object.at("tied").get<std::map<std::string, std::string>>(),
                                .train = reader.graph(object.at("graphs").at("train")),
                                .evaluate = reader.graph(object.at("graphs").at("evaluate")),
                                .weights_record = reader.name(object.at("weights"), "record"),
                                .weights_bytes = reader.integer(object.at("weights"), "bytes")};
    if (const json& vocabulary = object.at("vocabulary"); !vocabulary.is_null()) {
      manifest.vocabulary = vocabulary.get<std::vector<std::string>>();
    }
    for (const json& tensor : object.at("state")) {
      manifest.state.push_back(reader.tensor(tensor));
    }
    check_fits(manifest, reader);
    return manifest;
  } catch (const json::exception& error) {
    reader.check(false, "is invalid: ", files::problem_with(error));
    throw;
  }
}

void check_runs_here(const PackageManifest& manifest, const std::string& path) {
  TORCH_CHECK_VALUE(manifest.device == "cpu", path, ": is compiled for the device ",
                    printable(manifest.device, kLongestValue), "; only packages for CPUs can be trained");
  TORCH_CHECK_VALUE(manifest.machine == machine(), path, ": is compiled for ",
                    printable(manifest.machine, kLongestValue), ", but this machine is ", machine());
  TORCH_CHECK_VALUE(has_instruction_set(manifest.instruction_set), path, ": is compiled for ",
                    printable(manifest.instruction_set, kLongestValue),
                    ", which this processor lacks; export it with instruction_set=\"AVX2\", or on this machine");
  TORCH_CHECK_VALUE(numbers_of(manifest.torch) <= numbers_of(TORCH_VERSION), path, ": is compiled with torch ",
                    printable(manifest.torch, kLongestValue), ", which is newer than this LibTorch, " TORCH_VERSION,
                    "; export it with that version");
}

std::string version_warning(const PackageManifest& manifest, const std::string& path) {
  if (numbers_of(manifest.torch) == numbers_of(TORCH_VERSION)) return "";
  return c10::str(path, " is compiled with torch ", printable(manifest.torch, kLongestValue),
                  ", which is older than this LibTorch, " TORCH_VERSION,
                  "; export it with that version if results differ");
}

}  // namespace narrowcast::models
