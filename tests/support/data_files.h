// Writes data files byte by byte, as other programs write them: token files and NumPy arrays.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trainer/train/files/safetensors.h"

namespace narrowcast::testing {

// The bytes of numbers in memory order, which is little-endian.
template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

// The header that llm.c writes before `tokens` tokens.
inline std::string token_header(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return bytes_of(header);
}

// A token file of llm.c for GPT-2.
inline std::string gpt2_file(const std::vector<uint16_t>& tokens) {
  return token_header(20240520, 1, static_cast<int32_t>(tokens.size())) + bytes_of(tokens);
}

inline std::string llama3_file(const std::vector<uint32_t>& tokens) {
  return token_header(20240801, 7, static_cast<int32_t>(tokens.size())) + bytes_of(tokens);
}

// An NPY file with this dictionary, padded as NumPy does so that the array begins at a multiple of 64.
inline std::string npy_file(const std::string& dictionary, std::string_view array, char version = 1) {
  const size_t before = version == 1 ? 10 : 12;
  const size_t length = (before + dictionary.size() + 1 + 63) / 64 * 64 - before;
  std::string bytes = std::string("\x93NUMPY") + version + '\0';
  for (size_t i = 0; i < before - 8; ++i) {
    bytes.push_back(static_cast<char>(length >> 8 * i));
  }
  return bytes + dictionary + std::string(length - dictionary.size() - 1, ' ') + '\n' + std::string(array);
}

inline std::string npy_dictionary(const std::string& dtype, const std::string& shape) {
  return "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

// An NPY file of a contiguous tensor; its dtype must be one of NumPy's.
inline std::string npy_file(const at::Tensor& tensor) {
  const std::map<at::ScalarType, std::string> names = {{at::kDouble, "<f8"}, {at::kFloat, "<f4"}, {at::kHalf, "<f2"},
                                                       {at::kLong, "<i8"},   {at::kInt, "<i4"},   {at::kShort, "<i2"},
                                                       {at::kChar, "|i1"},   {at::kByte, "|u1"},  {at::kBool, "|b1"}};
  std::string shape = "(";
  for (const int64_t size : tensor.sizes()) {
    shape += std::to_string(size) + ", ";
  }
  shape = tensor.dim() == 1 ? shape.substr(0, shape.size() - 1) : shape.substr(0, shape.size() - 2);
  return npy_file(npy_dictionary(names.at(tensor.scalar_type()), shape + ")"),
                  {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
}

// Writes the samples of a part (inputs and targets), in each of the two formats.
inline void write_npy(const TemporaryFolder& folder, const std::string& part, const at::Tensor& inputs,
                      const at::Tensor& targets) {
  folder.write(part + "_inputs.npy", npy_file(inputs));
  folder.write(part + "_targets.npy", npy_file(targets));
}

inline void write_tensors(const TemporaryFolder& folder, const std::string& name, const at::Tensor& inputs,
                          const at::Tensor& targets) {
  files::write_safetensors(folder / (name + ".safetensors"),
                           {.tensors = {{"inputs", inputs}, {"targets", targets}}, .metadata = {}});
}

}  // namespace narrowcast::testing
