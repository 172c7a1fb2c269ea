// The format of a folder of data, from the names of its files.
#pragma once

#include <string>
#include <vector>

namespace narrowcast::data {

// The formats of samples.
enum class DataFormat {
  kText,         // anything else
  kIdx,          // train-images-idx3-ubyte, compressed or not, and the other files that IdxImages names
  kTokens,       // train.bin, *_train.bin or *_train_*.bin; val.bin, *_val.bin or *_val_*.bin
  kSafetensors,  // train*.safetensors; validation*.safetensors
  kNpy,          // train*_inputs.npy and train*_targets.npy; validation*_inputs.npy and validation*_targets.npy
};

// The names of token files without a header.
inline constexpr const char* kRawTraining = "train.bin";
inline constexpr const char* kRawValidation = "val.bin";

// The names of the parts of IDX files.
inline constexpr const char* kIdxTraining = "train";
inline constexpr const char* kIdxHeldOut = "t10k";

// The names of a part's images and labels: "train-images-idx3-ubyte".
std::string idx_images_name(const std::string& part);
std::string idx_labels_name(const std::string& part);

// The names of the two tensors of samples.
inline constexpr const char* kInputs = "inputs";
inline constexpr const char* kTargets = "targets";

// The end of the name of such a tensor's NPY file: "_inputs.npy".
std::string npy_ending(const std::string& tensor);

// The format of `paths`: if they are a single folder, the format that its files' names indicate, else text. Hidden
// files and subfolders are ignored. A path that cannot be examined counts as text; reading it then fails with the
// reason. Throws CorruptInputError naming two files of one folder whose formats differ, or a folder that cannot be read
// to its end. Throws c10::ValueError naming a file that has a name of one of the formats: its folder must be given
// instead.
DataFormat format_of(const std::vector<std::string>& paths);

// The name of a format for people: "token files".
const char* describe(DataFormat format);

// Paths of files, sorted bytewise by name.
struct DataFiles {
  std::vector<std::string> training;
  std::vector<std::string> validation;
};

// The files of the format in a folder; not for text or IDX. Throws CorruptInputError naming the folder and the missing
// names if one of the parts has no file, a file's name matches both parts, or the folder cannot be read to its end.
DataFiles list_files(const std::string& folder, DataFormat format);

}  // namespace narrowcast::data
