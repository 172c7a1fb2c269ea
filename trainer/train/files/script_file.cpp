#include "trainer/train/files/script_file.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/files/foreign_model.h"

namespace narrowcast::files {
namespace {

constexpr std::string_view kExtraFolder = "extra/";     // in the archive
constexpr const char* kVocabulary = "vocabulary.json";  // the extra file of a text model
constexpr const char* kLoss = "narrowcast_loss.txt";    // the extra file of a model whose forward returns predictions

// The names only; the module's reader fills in the contents.
std::unordered_map<std::string, std::string> extra_file_names(const std::string& path) {
  std::unordered_map<std::string, std::string> names;
  caffe2::serialize::PyTorchStreamReader reader(path);
  for (const std::string& record : reader.getAllRecords()) {
    if (record.starts_with(kExtraFolder)) {
      names.emplace(record.substr(kExtraFolder.size()), "");
    }
  }
  return names;
}

}  // namespace

SavedScript load_script(const std::string& path) {
  const std::string foreign = describe_foreign_model(path);
  NARROWCAST_CHECK_INPUT(foreign.empty(), path, ": is not a TorchScript module: ", foreign);
  try {
    auto extra_files = extra_file_names(path);
    torch::jit::Module module = torch::jit::load(path, at::kCPU, extra_files);
    return {.module = std::move(module), .extra_files = std::move(extra_files)};
  } catch (const std::exception& error) {
    NARROWCAST_CHECK_INPUT(false, path,
                           ": is not a TorchScript module: ", printable(first_line(error_message(error)), 1000));
  }
}

void save_script(const std::string& path, const SavedScript& saved) {
  std::ostringstream archive;
  saved.module.save(archive, saved.extra_files);
  AtomicFile file(path);
  file.write(archive.view());
  file.commit();
}

void put_vocabulary(SavedScript& saved, const std::vector<std::string>& vocabulary) {
  if (!vocabulary.empty()) {
    saved.extra_files[kVocabulary] = nlohmann::json(vocabulary).dump();
  }
}

std::vector<std::string> script_vocabulary(const std::string& path, const SavedScript& saved) {
  const auto found = saved.extra_files.find(kVocabulary);
  if (found == saved.extra_files.end()) {
    return {};
  }
  const nlohmann::json entries = try_parse_json(found->second).value;
  const bool strings = entries.is_array() && std::all_of(entries.begin(), entries.end(),
                                                         [](const nlohmann::json& entry) { return entry.is_string(); });
  NARROWCAST_CHECK_INPUT(strings, path, ": its extra file ", kVocabulary, " is not a JSON array of strings");
  return entries.get<std::vector<std::string>>();
}

void put_loss(SavedScript& saved, const std::optional<models::Loss>& loss) {
  if (loss.has_value()) {
    saved.extra_files[kLoss] = models::to_string(*loss);
  } else {
    saved.extra_files.erase(kLoss);
  }
}

std::optional<models::Loss> script_loss(const std::string& path, const SavedScript& saved) {
  const auto found = saved.extra_files.find(kLoss);
  if (found == saved.extra_files.end()) {
    return std::nullopt;
  }
  try {
    return models::parse_loss(found->second);
  } catch (const c10::ValueError& error) {
    NARROWCAST_CHECK_INPUT(false, path, ": its extra file ", kLoss, ": ",
                           printable(first_line(error.what_without_backtrace()), 1000));
  }
}

}  // namespace narrowcast::files
