#include "trainer/train/files/weight_files.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/hash.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr const char* kFileInFolder = "model.safetensors";
constexpr const char* kIndexInFolder = "model.safetensors.index.json";

// The names of the tensors of each part, by the part's name.
using NamesByPart = std::map<std::string, std::vector<std::string>>;

// N of "model-00001-of-0000N.safetensors"; empty for other names.
std::optional<int64_t> count_of_parts(const std::string& name) {
  const std::vector<std::string> words = absl::StrSplit(name.substr(0, name.size() - kFileSuffix.size()), '-');
  int64_t number = 0;
  int64_t count = 0;
  const bool is_part = words.size() >= 4 && words[words.size() - 2] == "of" &&
                       absl::SimpleAtoi(words[words.size() - 3], &number) && absl::SimpleAtoi(words.back(), &count);
  return is_part ? std::optional(count) : std::nullopt;
}

// The file or index in the folder.
std::string find_in_folder(const std::string& option, const std::string& folder) {
  std::error_code ignored;  // A path that cannot be looked up does not exist.
  const std::string file = fs::path(folder) / kFileInFolder;
  const std::string index = fs::path(folder) / kIndexInFolder;
  const bool has_file = fs::exists(file, ignored);
  const bool has_index = fs::exists(index, ignored);
  TORCH_CHECK_VALUE(has_file || has_index, option, ": the folder ", folder, " has neither ", kFileInFolder, " nor ",
                    kIndexInFolder);
  TORCH_CHECK_VALUE(!has_file || !has_index, option, ": the folder ", folder, " has both ", kFileInFolder, " and ",
                    kIndexInFolder, "; give one of the files");
  return has_file ? file : index;
}

void check_suffix(const std::string& option, const std::string& path) {
  if (path.ends_with(kIndexSuffix)) {
    return;
  }
  TORCH_CHECK_VALUE(path.ends_with(kFileSuffix), option, ": ", path, " must be a file of weights (*", kFileSuffix,
                    "), an index of such files (*", kIndexSuffix, ") or a folder");
  const int64_t parts = count_of_parts(fs::path(path).filename().string()).value_or(1);
  TORCH_CHECK_VALUE(parts == 1, option, ": ", path, " is one of ", parts, " parts; give the folder or the index, *",
                    kIndexSuffix);
}

NamesByPart read_index(const std::string& path) {
  const nlohmann::json index = parse_json(read_file(path), path);
  const nlohmann::json weights = index.is_object() ? index.value("weight_map", nlohmann::json()) : nlohmann::json();
  NARROWCAST_CHECK_INPUT(weights.is_object() && !weights.empty(), path, ": lacks the object 'weight_map'");
  NamesByPart names;
  for (const auto& [tensor, part] : weights.items()) {
    NARROWCAST_CHECK_INPUT(part.is_string(), path, ": the part of tensor ", in_quotes(tensor), " is not a string");
    const auto& name = part.get_ref<const std::string&>();
    const bool is_beside = name.ends_with(kFileSuffix) && fs::path(name).filename() == name;
    NARROWCAST_CHECK_INPUT(is_beside, path, ": tensor ", in_quotes(tensor), " is in ", in_quotes(name),
                           ", which is not the name of a file *", kFileSuffix);
    names[name].push_back(tensor);
  }
  return names;
}

// Moves the tensors of a part to the tensors that were read before. `names` are sorted.
void take_part(const std::string& path, const std::string& index, const std::vector<std::string>& names,
               std::map<std::string, at::Tensor>& tensors) {
  Safetensors part = read_safetensors(path);
  for (const std::string& name : names) {
    NARROWCAST_CHECK_INPUT(part.tensors.contains(name), path, ": lacks tensor ", in_quotes(name), ", which ", index,
                           " assigns to it");
  }
  for (auto& [name, tensor] : part.tensors) {
    NARROWCAST_CHECK_INPUT(std::ranges::binary_search(names, name), path, ": tensor ", in_quotes(name),
                           " is not assigned to it by ", index);
    tensors.emplace(name, std::move(tensor));
  }
}

}  // namespace

Weights read_weights(const std::string& option, const std::string& path) {
  std::error_code ignored;  // A path that cannot be looked up cannot be read either; reading reports it.
  const std::string found = fs::is_directory(path, ignored) ? find_in_folder(option, path) : path;
  check_suffix(option, found);
  Weights weights = {.content = {}, .files = {found}};
  if (!found.ends_with(kIndexSuffix)) {
    weights.content = read_safetensors(found);
    return weights;
  }
  for (const auto& [name, tensors] : read_index(found)) {
    weights.files.push_back((fs::path(found).parent_path() / name).string());
    take_part(weights.files.back(), found, tensors, weights.content.tensors);
  }
  return weights;
}

uint64_t hash_of_files(const std::vector<std::string>& paths) {
  std::string part(size_t{1} << 20, '\0');
  uint64_t hash = kHashStart;
  for (const std::string& path : paths) {
    const InputFile file(path);
    for (int64_t offset = 0, bytes = -1; bytes != 0; offset += bytes) {
      bytes = file.read_some(offset, part.data(), std::ssize(part));
      hash = hash_of_content(std::string_view(part).substr(0, static_cast<size_t>(bytes)), hash);
    }
  }
  return hash;
}

}  // namespace narrowcast::files
