// Wire formats: float tensors as the bytes that travel between ranks, and back.
// docs/wire_format.md describes their bytes, docs/operators.md the operators of the
// same names.
//
// All functions go through the dispatcher, so they run on the tensor's device,
// take tensors of any layout and any number of dimensions, trace and script.
// There are no gradients: bytes are whole numbers, which autograd takes for
// constants. c10::ValueError or c10::TypeError names the argument that is wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include <narrowcast/export.h>
#include <narrowcast/wire_formats.h>

namespace NARROWCAST_EXPORT narrowcast {

// A name of docs/wire_format.md, e.g. "int8_b128": one of wire_format_names(). c10::ValueError for a number that is
// no WireFormat.
std::string_view to_string(WireFormat format);

// Prints to_string(format).
std::ostream& operator<<(std::ostream& stream, WireFormat format);

// The inverse of to_string. c10::ValueError for other names, listing the known ones.
WireFormat parse_wire_format(std::string_view name);

// All names, separated by ", ".
std::string wire_format_names();

// How encode rounds.
struct EncodeOptions {
  // Rounds up or down at random, with the number as the expected value; without a seed to the nearest.
  std::optional<int64_t> seed = std::nullopt;
  int64_t step = 0;    // With the seed: other steps have other random numbers. At least 0.
  int64_t offset = 0;  // Where x begins in what it is a part of: parts get the random numbers of the whole. At least 0.
};

// Bytes of a message of `numel` elements. c10::ValueError for a negative number.
int64_t encoded_size(int64_t numel, WireFormat format);

// x [...] float32, float64, bfloat16 or float16, rounded to float32 first -> uint8 [encoded_size]: its elements in
// order.
at::Tensor encode(const at::Tensor& x, WireFormat format, const EncodeOptions& options = {});

// bytes uint8 [encoded_size(numel)] -> float32 [numel]. CorruptInputError (narrowcast/errors.h) for another number of
// bytes.
at::Tensor decode(const at::Tensor& bytes, WireFormat format, int64_t numel);

}  // namespace narrowcast
