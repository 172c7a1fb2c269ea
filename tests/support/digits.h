// Small data sets in MNIST's format.
#pragma once

#include <string>
#include <utility>

#include "tests/support/temporary_folder.h"

namespace narrowcast::testing {

// Either 8 x 8 images or their labels. Digit k is a bar in row k % 8 whose brightness depends on k / 8, with noise of
// up to 15 in every pixel.
inline std::string idx_file(const std::string& header, int images, bool labels) {
  std::string bytes = header;
  unsigned noise = 1;
  for (int image = 0; image < images; ++image) {
    const int digit = image % 10;
    if (labels) {
      bytes.push_back(static_cast<char>(digit));
      continue;
    }
    for (int pixel = 0; pixel < 64; ++pixel) {
      noise = noise * 1664525 + 1013904223;
      const bool on_bar = pixel / 8 == digit % 8;
      bytes.push_back(static_cast<char>((on_bar ? (digit < 8 ? 120 : 240) : 0) + (noise >> 28)));
    }
  }
  return bytes;
}

// Writes 400 training images and 40 held-out ones.
inline void write_digits(const TemporaryFolder& folder) {
  const auto size = [](int value) {
    return std::string{'\0', '\0', static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  for (const auto& [prefix, images] : {std::pair<std::string, int>{"train", 400}, {"t10k", 40}}) {
    const std::string image_header = std::string("\0\0\x08\x03", 4) + size(images) + size(8) + size(8);
    folder.write(prefix + "-images-idx3-ubyte", idx_file(image_header, images, false));
    folder.write(prefix + "-labels-idx1-ubyte", idx_file(std::string("\0\0\x08\x01", 4) + size(images), images, true));
  }
}

}  // namespace narrowcast::testing
