#include "trainer/train/files/foreign_model.h"

#include <absl/strings/str_cat.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string_view>
#include <vector>

#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;  // of a pickle, to search
constexpr std::string_view kZip = "PK\x03\x04";
constexpr std::string_view kPickle = "\x80";  // followed by the protocol, 2 to 5
constexpr const char* kPackages = "narrowcast_export.export(net, example, loss, \"net.pt2\") writes a model package";
constexpr const char* kScripts = "torch.jit.script(net).save(\"net.pt\") writes a TorchScript module";
constexpr const char* kWeights =
    "safetensors.torch.save_file(net.state_dict(), \"weights.safetensors\") writes weights for --init_from";

// The first bytes of the file, at most `bytes`.
std::string begin_of(const InputFile& file, int64_t bytes) {
  std::string begin(static_cast<size_t>(std::min(bytes, file.size())), '\0');
  begin.resize(static_cast<size_t>(file.read_some(0, begin.data(), std::ssize(begin))));
  return begin;
}

// A pickled instance of torch.nn.Module includes its attributes; every module has these two.
bool holds_module(std::string_view pickle) {
  const auto has = [&](std::string_view name) { return pickle.find(name) != std::string_view::npos; };
  return has("_modules") && has("_parameters");
}

std::string describe_pickle(std::string_view pickle) {
  if (holds_module(pickle)) {
    return absl::StrCat("it is a pickled module, as torch.save(net, ...) writes it: in Python, ", kScripts);
  }
  return absl::StrCat("it holds pickled data without code, as torch.save(net.state_dict(), ...) writes it: in Python, ",
                      kScripts, ", and ", kWeights);
}

std::string describe_entries(caffe2::serialize::PyTorchStreamReader& archive) {
  const std::vector<std::string> names = archive.getAllRecords();
  const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  if (has("narrowcast/weights.safetensors")) {
    return "it is a model package, which must be named *.pt2";
  }
  const bool is_exported = has("archive_format") || has("serialized_exported_program.json");
  if (is_exported) {
    return absl::StrCat("it is a program of torch.export.save(), which cannot be trained: in Python, ", kPackages,
                        ", and ", kScripts);
  }
  if (has("constants.pkl")) {
    return "";
  }
  if (!has("data.pkl")) {
    return absl::StrCat("it is a zip archive of another program: in Python, ", kScripts);
  }
  if (static_cast<int64_t>(archive.getRecordSize("data.pkl")) > kMostBytes) {
    return describe_pickle("");
  }
  const auto [bytes, size] = archive.getRecord("data.pkl");
  return describe_pickle({static_cast<const char*>(bytes.get()), size});
}

// LibTorch's reader accepts only archives whose entries are in one folder, as its own are.
std::string describe_zip(const std::string& path) {
  try {
    caffe2::serialize::PyTorchStreamReader archive(path);
    return describe_entries(archive);
  } catch (const std::exception&) {
    return "it is a zip archive of another program, or is damaged";
  }
}

// The header's length in 8 bytes, then JSON.
bool is_safetensors(std::string_view begin) { return begin.size() > 9 && begin.substr(8, 2) == "{\""; }

}  // namespace

std::string describe_foreign_model(const std::string& path) {
  const InputFile file(path);
  const std::string begin = begin_of(file, 16);
  if (begin.starts_with(kZip)) {
    return describe_zip(path);
  }
  if (begin.size() > 1 && begin.starts_with(kPickle) && begin[1] >= 2 && begin[1] <= 5) {
    return describe_pickle(begin_of(file, kMostBytes));
  }
  if (is_safetensors(begin)) {
    return absl::StrCat("it holds tensors without code (safetensors), which --init_from takes: in Python, ", kScripts);
  }
  return "";
}

}  // namespace narrowcast::files
