// What is in a folder of data, by the names of its files.
#pragma once

#include <string>
#include <vector>

namespace narrowcast::data {

// What files of samples there are.
enum class DataFormat {
  kText,         // anything that is none of the following
  kIdx,          // train-images-idx3-ubyte, compressed or not, and the others that IdxImages names
  kTokens,       // train.bin, *_train.bin or *_train_*.bin; val.bin, *_val.bin or *_val_*.bin
  kSafetensors,  // train*.safetensors; validation*.safetensors
  kNpy,          // train*_inputs.npy and train*_targets.npy; validation*_inputs.npy and validation*_targets.npy
};

// What token files without a header are called.
inline constexpr const char* kRawTraining = "train.bin";
inline constexpr const char* kRawValidation = "val.bin";

// What the parts of IDX files are called.
inline constexpr const char* kIdxTraining = "train";
inline constexpr const char* kIdxHeldOut = "t10k";

// The names of a part's images and labels: "train-images-idx3-ubyte".
std::string idx_images_name(const std::string& part);
std::string idx_labels_name(const std::string& part);

// What the two tensors of samples are called.
inline constexpr const char* kInputs = "inputs";
inline constexpr const char* kTargets = "targets";

// What the name of such a tensor's NPY file ends with: "_inputs.npy".
std::string npy_ending(const std::string& tensor);

// What `paths` hold: of one folder what its files' names say (not those of hidden ones, nor of folders below it), of
// all else text. Throws CorruptInputError naming two files of one folder whose formats differ, or a folder that cannot
// be read to its end, and c10::ValueError naming a file that is given instead of its folder: one that is called as
// those of a format are. What cannot be looked up is text: reading it says why.
DataFormat format_of(const std::vector<std::string>& paths);

// The name of a format for people: "token files".
const char* describe(DataFormat format);

// Paths of files, sorted by their names, byte by byte.
struct DataFiles {
  std::vector<std::string> training;
  std::vector<std::string> validation;
};

// The files of the format, which is neither text nor IDX, in a folder. Throws CorruptInputError naming the folder and
// the names that are missing if one of the parts has no file, a file's name says both, or the folder cannot be read to
// its end.
DataFiles list_files(const std::string& folder, DataFormat format);

}  // namespace narrowcast::data
