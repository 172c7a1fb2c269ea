#include "models/imported/package_file.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/safetensors_header.h"
#include "trainer/base/files/torch_archive.h"

namespace narrowcast::models {
namespace {

constexpr const char* kTrain = "data/aotinductor/train/";
constexpr const char* kEvaluate = "data/aotinductor/evaluate/";
constexpr std::string_view kLibrary = ".so";
constexpr std::string_view kMetadata = "_metadata.json";
constexpr const char* kManifest = "narrowcast";  // its key in the metadata
constexpr const char* kExporter = "in Python, narrowcast_export.export(net, example, loss, \"net.pt2\") writes one";

std::string manifest_text(const files::TorchArchive& archive, const std::string& path) {
  const std::optional<std::string> name = archive.find(kTrain, kMetadata);
  TORCH_CHECK_VALUE(name.has_value(), path, ": is not a model package",
                    archive.has("archive_format") ? ", but another file of torch.export: " : ": ", kExporter);
  const nlohmann::json metadata = files::parse_json(archive.read(*name), path + ": " + printable(*name));
  const auto manifest = metadata.find(kManifest);
  TORCH_CHECK_VALUE(manifest != metadata.end() && manifest->is_string(), path,
                    ": is a package of AOTInductor without a training step: ", kExporter);
  return manifest->get<std::string>();
}

CompiledFiles compiled_files(const files::TorchArchive& archive, const std::string& path, const char* folder) {
  const std::optional<std::string> library = archive.find(folder, kLibrary);
  NARROWCAST_CHECK_INPUT(library.has_value(), path, ": has no library in ", folder);
  CompiledFiles files = {.library = archive.read(*library), .operators = {}};
  const std::string operators = library->substr(0, library->size() - kLibrary.size()) + ".json";
  if (archive.has(operators)) {
    files.operators = archive.read(operators);
  }
  return files;
}

at::Tensor tensor_of(const files::TensorEntry& entry, std::string_view data) {
  const at::Tensor tensor = at::empty(entry.shape, entry.dtype);
  if (tensor.nbytes() > 0) {
    std::memcpy(tensor.data_ptr(), data.data() + entry.begin, tensor.nbytes());
  }
  return tensor;
}

// The tensors of a safetensors record.
std::map<std::string, at::Tensor> read_weights(std::string_view bytes, const std::string& name) {
  uint64_t length = 0;
  NARROWCAST_CHECK_INPUT(bytes.size() >= sizeof(length), name, ": is too short: ", bytes.size(), " bytes");
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes.remove_prefix(sizeof(length));
  NARROWCAST_CHECK_INPUT(length <= bytes.size(), name, ": its header's length ", length, " reaches past its end");
  const std::string_view data = bytes.substr(length);
  const files::SafetensorsHeader header =
      files::parse_safetensors_header(bytes.substr(0, length), static_cast<int64_t>(data.size()), name);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [tensor, entry] : header.tensors) {
    tensors.emplace(tensor, tensor_of(entry, data));
  }
  return tensors;
}

void check_weights(const Package& package, const std::string& path) {
  for (const PackagedTensor& expected : package.manifest.state) {
    const auto found = package.weights.find(expected.name);
    NARROWCAST_CHECK_INPUT(found != package.weights.end(), path, ": its weights lack the tensor ",
                           in_quotes(expected.name));
    const at::Tensor& tensor = found->second;
    NARROWCAST_CHECK_INPUT(tensor.sizes() == at::IntArrayRef(expected.shape) && tensor.scalar_type() == expected.dtype,
                           path, ": its weights have the tensor ", in_quotes(expected.name), " of ",
                           tensor.scalar_type(), " ", tensor.sizes(), ", but its manifest says ", expected.dtype, " ",
                           at::IntArrayRef(expected.shape));
  }
  NARROWCAST_CHECK_INPUT(package.weights.size() == package.manifest.state.size(), path, ": has ",
                         package.weights.size(), " weights, but its manifest lists ", package.manifest.state.size());
}

}  // namespace

Package read_package(const std::string& path) {
  const files::TorchArchive archive(path, c10::str("is not a model package, or is damaged: ", kExporter));
  Package package;
  package.manifest = parse_manifest(manifest_text(archive, path), path);
  check_runs_here(package.manifest, path);
  const std::string& weights = package.manifest.weights_record;
  NARROWCAST_CHECK_INPUT(archive.has(weights), path, ": has no record ", in_quotes(weights));
  const std::string bytes = archive.read(weights);
  NARROWCAST_CHECK_INPUT(std::ssize(bytes) == package.manifest.weights_bytes, path, ": has ", bytes.size(),
                         " bytes of weights, but its manifest says ", package.manifest.weights_bytes);
  package.weights = read_weights(bytes, path + ": " + printable(weights));
  check_weights(package, path);
  package.train = compiled_files(archive, path, kTrain);
  package.evaluate = compiled_files(archive, path, kEvaluate);
  return package;
}

}  // namespace narrowcast::models
