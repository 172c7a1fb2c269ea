#include "models/imported/package_file.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/files/safetensors_header.h"

namespace narrowcast::models {
namespace {

constexpr const char* kTrain = "data/aotinductor/train/";
constexpr const char* kEvaluate = "data/aotinductor/evaluate/";
constexpr std::string_view kLibrary = ".so";
constexpr std::string_view kMetadata = "_metadata.json";
constexpr const char* kManifest = "narrowcast";  // its key in the metadata
constexpr const char* kExporter = "in Python, narrowcast_export.export(net, example, loss, \"net.pt2\") writes one";

using Archive = caffe2::serialize::PyTorchStreamReader;

std::string record(Archive& archive, const std::string& name) {
  const auto [bytes, size] = archive.getRecord(name);
  return {static_cast<const char*>(bytes.get()), size};
}

// The record below `folder` whose name ends in `suffix`.
std::optional<std::string> find_record(Archive& archive, std::string_view folder, std::string_view suffix) {
  const std::vector<std::string> names = archive.getAllRecords();
  const auto found = std::ranges::find_if(
      names, [&](const std::string& name) { return name.starts_with(folder) && name.ends_with(suffix); });
  return found == names.end() ? std::nullopt : std::optional(*found);
}

std::string manifest_text(Archive& archive, const std::string& path) {
  const std::optional<std::string> name = find_record(archive, kTrain, kMetadata);
  TORCH_CHECK_VALUE(name.has_value(), path, ": is not a model package",
                    archive.hasRecord("archive_format") ? ", but another file of torch.export: " : ": ", kExporter);
  const nlohmann::json metadata = files::parse_json(record(archive, *name), path + ": " + *name);
  const auto manifest = metadata.find(kManifest);
  TORCH_CHECK_VALUE(manifest != metadata.end() && manifest->is_string(), path,
                    ": is a package of AOTInductor without a training step: ", kExporter);
  return manifest->get<std::string>();
}

CompiledFiles compiled_files(Archive& archive, const std::string& path, const char* folder) {
  const std::optional<std::string> library = find_record(archive, folder, kLibrary);
  NARROWCAST_CHECK_INPUT(library.has_value(), path, ": has no library in ", folder);
  CompiledFiles files = {.library = record(archive, *library), .operators = {}};
  const std::string operators = library->substr(0, library->size() - kLibrary.size()) + ".json";
  if (archive.hasRecord(operators)) {
    files.operators = record(archive, operators);
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
  const files::InputFile file(path);  // Its errors say what is wrong with the path.
  std::optional<Archive> archive;
  try {
    archive.emplace(path);
  } catch (const std::exception&) {
    TORCH_CHECK_VALUE(false, path, ": is not a model package, or is damaged: ", kExporter);
  }
  Package package;
  package.manifest = parse_manifest(manifest_text(*archive, path), path);
  check_runs_here(package.manifest, path);
  const std::string& weights = package.manifest.weights_record;
  try {
    NARROWCAST_CHECK_INPUT(archive->hasRecord(weights), path, ": has no record ", in_quotes(weights));
    package.weights = read_weights(record(*archive, weights), path + ": " + printable(weights));
    package.train = compiled_files(*archive, path, kTrain);
    package.evaluate = compiled_files(*archive, path, kEvaluate);
  } catch (const CorruptInputError&) {
    throw;
  } catch (const std::exception& error) {
    NARROWCAST_CHECK_INPUT(false, path, ": is damaged: ", printable(first_line(error_message(error))));
  }
  check_weights(package, path);
  return package;
}

}  // namespace narrowcast::models
