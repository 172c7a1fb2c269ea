#include "tests/models/imported/small_package.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "trainer/base/files/open_file.h"
#include "trainer/base/files/safetensors_header.h"

namespace narrowcast::testing {
namespace {

using nlohmann::json;

// Without the bytes of the weights, which manifest_text() adds.
json initial_manifest() {
  utsname names = {};
  ::uname(&names);
  json manifest = json::parse(R"({
    "format": 1, "module": "SmallNet", "device": "cpu", "instruction_set": "AVX2", "threads": null,
    "loss": "cross_entropy", "label_smoothing": 0.0, "vocabulary": null,
    "inputs": {"shape": ["batch", 4], "dtype": "F32"},
    "targets": {"shape": ["batch"], "dtype": "I64"},
    "state": [
      {"name": "layers.0.weight", "role": "trained", "shape": [3, 4], "dtype": "F32", "unused": false},
      {"name": "layers.0.shift", "role": "trained", "shape": [3, 4], "dtype": "F32", "unused": false},
      {"name": "layers.0.bias", "role": "trained", "shape": [3], "dtype": "F32", "unused": false},
      {"name": "pair.first", "role": "trained", "shape": [3], "dtype": "F32", "unused": false},
      {"name": "pair.second", "role": "trained", "shape": [3], "dtype": "F32", "unused": false},
      {"name": "level", "role": "trained", "shape": [3], "dtype": "F32", "unused": false},
      {"name": "drift", "role": "trained", "shape": [4], "dtype": "F32", "unused": false},
      {"name": "spare", "role": "trained", "shape": [2], "dtype": "F32", "unused": true},
      {"name": "scale", "role": "frozen", "shape": [4], "dtype": "F32"},
      {"name": "steps", "role": "buffer", "shape": [], "dtype": "I64", "persistent": true},
      {"name": "current", "role": "buffer", "shape": [4], "dtype": "F32", "persistent": false},
      {"name": "previous", "role": "buffer", "shape": [4], "dtype": "F32", "persistent": true},
      {"name": "offset", "role": "buffer", "shape": [3], "dtype": "F32", "persistent": true}],
    "tied": {"head.weight": "layers.0.weight"},
    "graphs": {
      "train": {"batch": {"min": 2, "max": 16}, "random": false, "outputs": [
        {"role": "loss"},
        {"role": "gradient", "name": "layers.0.weight"}, {"role": "gradient", "name": "layers.0.shift"},
        {"role": "gradient", "name": "layers.0.bias"}, {"role": "gradient", "name": "pair.first"},
        {"role": "gradient", "name": "pair.second"}, {"role": "gradient", "name": "level"},
        {"role": "gradient", "name": "drift"}, {"role": "gradient", "name": "spare"},
        {"role": "buffer", "name": "steps"}, {"role": "buffer", "name": "current"},
        {"role": "buffer", "name": "previous"},
        {"role": "signal", "name": "drift", "kept": true}, {"role": "signal", "name": "level", "kept": true},
        {"role": "signal", "name": "pair.second", "kept": true}, {"role": "signal", "name": "pair.first", "kept": true},
        {"role": "signal", "name": "layers.0.bias", "kept": false},
        {"role": "signal", "name": "layers.0.shift", "kept": true},
        {"role": "signal", "name": "layers.0.weight", "kept": true}]},
      "evaluate": {"batch": {"min": 1, "max": 32}, "random": false, "outputs": [
        {"role": "loss"}, {"role": "outputs", "shape": ["batch", 3], "dtype": "F32"}]}},
    "weights": {"record": "narrowcast/weights.safetensors"},
    "hash": "a795aa706b0b855e587a4c98acc2fa2b792b5a9632c3e4abcff5310655c27e5f",
    "checked": {"tolerance": 1e-05, "gradients_float64": 4.4e-07, "gradients_float32": 4.5e-07}
  })");
  manifest["torch"] = std::string(TORCH_VERSION) + "+cpu";
  manifest["machine"] = names.machine;
  if (manifest["machine"] != "x86_64") manifest["instruction_set"] = at::get_cpu_capability();
  return manifest;
}

// A copy of the library that contains this graph.
std::string library_of(const std::string& graph) {
  std::string library = files::read_file(kSmallGraphPath);
  constexpr std::string_view kMark = "small_graph:";
  const size_t mark = library.find(kMark);
  TORCH_CHECK(mark != std::string::npos && library.find(kMark, mark + 1) == std::string::npos,
              "the mark is not unique");
  const size_t begin = mark + kMark.size();
  const size_t room = library.find('\0', begin) - begin;
  TORCH_CHECK(graph.size() < room, "the name is too long");
  return library.replace(begin, room, graph + std::string(room - graph.size(), '.'));
}

}  // namespace

std::string write_archive(const std::string& path, const Records& records) {
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const auto& [name, bytes] : records) {
    writer.writeRecord(name, bytes.data(), bytes.size());
  }
  writer.writeEndOfFile();
  return path;
}

std::string safetensors_of(const std::map<std::string, at::Tensor>& tensors) {
  files::SafetensorsHeader header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor dense = tensor.detach().contiguous();
    const auto begin = std::ssize(data);
    data.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    header.tensors.emplace_back(
        name, files::TensorEntry{
                  .dtype = dense.scalar_type(), .shape = dense.sizes().vec(), .begin = begin, .end = std::ssize(data)});
  }
  const std::string text = files::format_safetensors_header(header, "weights");
  static_assert(std::endian::native == std::endian::little);
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text + data;
}

SmallPackage::SmallPackage() : manifest(initial_manifest()) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (const json& tensor : manifest["state"]) {
    const auto shape = tensor["shape"].get<std::vector<int64_t>>();
    weights[tensor["name"]] = tensor["dtype"] == "I64" ? at::full(shape, 5, at::kLong) : at::randn(shape, generator);
  }
}

json& SmallPackage::state(const std::string& name) {
  json& all = manifest["state"];
  return *std::find_if(all.begin(), all.end(), [&](const json& tensor) { return tensor["name"] == name; });
}

void SmallPackage::take_values(const std::string& loss) {
  manifest["loss"] = loss;
  manifest["targets"] = {{"shape", {"batch", 3}}, {"dtype", "F32"}};
}

std::string SmallPackage::manifest_text() const {
  json whole = manifest;
  if (!whole["weights"].contains("bytes")) whole["weights"]["bytes"] = safetensors_of(weights).size();
  return whole.dump();
}

Records SmallPackage::records(const std::string& library) const {
  const std::string metadata = json{{"AOTI_DEVICE_KEY", "cpu"}, {"narrowcast", manifest_text()}}.dump();
  return {{"archive_format", "pt2"},
          {"narrowcast/weights.safetensors", safetensors_of(weights)},
          {"data/aotinductor/train/small.wrapper.so", library},
          {"data/aotinductor/train/small.wrapper_metadata.json", metadata},
          {"data/aotinductor/evaluate/small.wrapper.so", library},
          {"data/aotinductor/evaluate/small.wrapper_metadata.json", metadata}};
}

Records SmallPackage::records() const {
  Records records = this->records("");
  records["data/aotinductor/train/small.wrapper.so"] = library_of(train);
  records["data/aotinductor/evaluate/small.wrapper.so"] = library_of(evaluate);
  return records;
}

at::Tensor eager_logits(const std::map<std::string, at::Tensor>& state, const at::Tensor& inputs) {
  return at::linear(inputs * state.at("scale"), state.at("layers.0.weight") + state.at("layers.0.shift"),
                    state.at("layers.0.bias") + state.at("offset"));
}

at::Tensor eager_loss(const std::map<std::string, at::Tensor>& state, const models::Batch& batch) {
  const at::Tensor logits = eager_logits(state, batch.inputs);
  const bool has_classes = batch.targets.scalar_type() == at::kLong;
  const at::Tensor loss =
      has_classes ? at::cross_entropy_loss(logits, batch.targets) : at::mse_loss(logits, batch.targets);
  return loss + (state.at("pair.first") * state.at("pair.second")).sum() + state.at("level").mean() +
         (state.at("drift") * state.at("current")).sum();
}

models::Batch small_batch(uint64_t seed, int64_t samples) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor inputs = at::randn({samples, 4}, generator);
  return {.inputs = inputs, .targets = at::randint(3, {samples}, generator, at::kLong)};
}

}  // namespace narrowcast::testing
