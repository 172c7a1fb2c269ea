// Wire formats: conversion of float tensors to the bytes that ranks send, and back. The bytes are described in
// docs/reference/wire-format.md, the operators of the same names in docs/reference/operators.md.
//
// All functions go through the dispatcher, so they run on the tensor's device, accept tensors of any layout and any
// number of dimensions, trace and script. There are no gradients: bytes are whole numbers, which are constants to
// autograd. A c10::ValueError or c10::TypeError names an argument that is wrong.
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

// A name of docs/reference/wire-format.md, e.g. "int8_b128": one of wire_format_names(). Throws c10::ValueError if
// `format` is not a valid WireFormat.
std::string_view to_string(WireFormat format);

// Prints to_string(format).
std::ostream& operator<<(std::ostream& stream, WireFormat format);

// The inverse of to_string. Throws a c10::ValueError that lists the known names for any other name.
WireFormat parse_wire_format(std::string_view name);

// All names, separated by ", ".
std::string wire_format_names();

// Rounding by encode.
struct EncodeOptions {
  // With a seed, rounds up or down at random so that the number is the expected value; without one, to nearest.
  std::optional<int64_t> seed = std::nullopt;
  int64_t step = 0;    // With a seed, each step has different random numbers. At least 0.
  int64_t offset = 0;  // x's first element in a larger tensor, whose random numbers it gets. At least 0.
};

// Bytes of a message of `numel` elements. Throws c10::ValueError for a negative number.
int64_t encoded_size(int64_t numel, WireFormat format);

// x [...] -> uint8 [encoded_size(x.numel())]: the message of x's elements in order.
// x is float32, float64, bfloat16 or float16, and is first rounded to float32.
at::Tensor encode(const at::Tensor& x, WireFormat format, const EncodeOptions& options = {});

// bytes uint8 [encoded_size(numel)] -> float32 [numel].
// Throws CorruptInputError (narrowcast/errors.h) for another number of bytes.
at::Tensor decode(const at::Tensor& bytes, WireFormat format, int64_t numel);

}  // namespace narrowcast
