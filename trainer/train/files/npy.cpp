#include "trainer/train/files/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/files/safetensors_header.h"

namespace narrowcast::files {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionAt = 6;
constexpr size_t kLengthAt = 8;

// As numpy writes them: dtypes of one byte have no byte order.
constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 11> kDescriptions = {{
    {"<f8", c10::ScalarType::Double},
    {"<f4", c10::ScalarType::Float},
    {"<f2", c10::ScalarType::Half},
    {"<i8", c10::ScalarType::Long},
    {"<i4", c10::ScalarType::Int},
    {"<i2", c10::ScalarType::Short},
    {"|i1", c10::ScalarType::Char},
    {"<u4", c10::ScalarType::UInt32},
    {"<u2", c10::ScalarType::UInt16},
    {"|u1", c10::ScalarType::Byte},
    {"|b1", c10::ScalarType::Bool},
}};

// The little-endian number in the `width` bytes at `offset`.
size_t number_at(std::string_view bytes, size_t offset, size_t width) {
  size_t number = 0;
  for (size_t i = width; i > 0; --i) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i - 1]);
  }
  return number;
}

// The position of the header's literal in the file.
struct HeaderPlace {
  size_t begin;
  size_t end;
};

HeaderPlace find_header(const MappedFile& file) {
  const std::string_view bytes = file.bytes();
  const std::string& path = file.path();
  NARROWCAST_CHECK_INPUT(bytes.starts_with(kMagic), at_byte(0, path),
                         "is not an NPY file, which begins with \\x93NUMPY");
  NARROWCAST_CHECK_INPUT(bytes.size() >= kLengthAt, at_byte(bytes.size(), path),
                         "the file ends within its format version");
  const size_t major = number_at(bytes, kVersionAt, 1);
  const size_t minor = number_at(bytes, kVersionAt + 1, 1);
  NARROWCAST_CHECK_INPUT(major >= 1 && major <= 3 && minor == 0, at_byte(kVersionAt, path), "has the format version ",
                         major, ".", minor, ", but this program reads 1.0, 2.0 and 3.0");
  const size_t width = major == 1 ? 2 : 4;
  const size_t begin = kLengthAt + width;
  NARROWCAST_CHECK_INPUT(bytes.size() >= begin, at_byte(bytes.size(), path),
                         "the file ends within its header's length");
  const size_t length = number_at(bytes, kLengthAt, width);
  NARROWCAST_CHECK_INPUT(length <= bytes.size() - begin, at_byte(kLengthAt, path), "the header's length ", length,
                         " reaches past the end of the file at byte ", bytes.size());
  return {.begin = begin, .end = begin + length};
}

// Reads {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } with any white space before, between and after the
// items. Keys may come in any order, each once.
class NpyHeaderReader {
 public:
  NpyHeaderReader(const MappedFile& file, const HeaderPlace& place)
      : path_(file.path()), text_(file.bytes().substr(0, place.end)), at_(place.begin) {}

  MappedTensor read() {
    expect('{');
    for (bool more = !take('}'); more;) {
      read_entry();
      const bool has_comma = take(',');
      more = !take('}');
      NARROWCAST_CHECK_INPUT(!more || has_comma, at_byte(at_, path_), "the header must have ',' or '}' here");
    }
    skip_spaces();
    NARROWCAST_CHECK_INPUT(at_ == text_.size(), at_byte(at_, path_), "the header has text after its '}'");
    NARROWCAST_CHECK_INPUT(dtype_ && has_order_ && shape_, at_byte(at_, path_),
                           "the header lacks descr, fortran_order or shape");
    return {.file = nullptr, .dtype = *dtype_, .shape = std::move(*shape_), .begin = std::ssize(text_)};
  }

 private:
  void skip_spaces() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  bool take(std::string_view word) {
    skip_spaces();
    const bool is_next = text_.substr(at_).starts_with(word);
    at_ += is_next ? word.size() : 0;
    return is_next;
  }
  bool take(char mark) { return take(std::string_view(&mark, 1)); }

  void expect(char mark) {
    NARROWCAST_CHECK_INPUT(take(mark), at_byte(at_, path_), "the header must have '", mark, "' here");
  }

  void read_entry() {
    skip_spaces();
    const size_t begin = at_;
    const std::string_view key = read_string();
    expect(':');
    skip_spaces();
    if (key == "descr" && !dtype_) {
      read_dtype();
    } else if (key == "fortran_order" && !has_order_) {
      read_order();
    } else {
      NARROWCAST_CHECK_INPUT(key == "shape" && !shape_, at_byte(begin, path_), "the header has the key ",
                             in_quotes(key), ", which is unknown or a duplicate");
      read_shape();
    }
  }

  std::string_view read_string() {
    const std::string_view rest = text_.substr(at_);
    NARROWCAST_CHECK_INPUT(rest.starts_with('\'') || rest.starts_with('"'), at_byte(at_, path_),
                           "the header must have a string here");
    const size_t end = rest.find(rest[0], 1);
    NARROWCAST_CHECK_INPUT(end != std::string_view::npos, at_byte(at_, path_),
                           "the header's string has no closing quote");
    at_ += end + 1;
    return rest.substr(1, end - 1);
  }

  void read_dtype() {
    const size_t begin = at_;
    NARROWCAST_CHECK_INPUT(!text_.substr(at_).starts_with('['), at_byte(at_, path_),
                           "the array has fields, but only plain numbers are supported");
    const std::string_view name = read_string();
    NARROWCAST_CHECK_INPUT(!name.starts_with('>'), at_byte(begin, path_), "the array has the dtype ", in_quotes(name),
                           ", which is big-endian: convert it with array.astype(array.dtype.newbyteorder('<'))");
    const auto* const known = std::find_if(kDescriptions.begin(), kDescriptions.end(),
                                           [&](const auto& entry) { return entry.first == name; });
    NARROWCAST_CHECK_INPUT(known != kDescriptions.end(), at_byte(begin, path_), "the array has the dtype ",
                           in_quotes(name), ", which is unknown or not supported");
    dtype_ = known->second;
  }

  void read_order() {
    const size_t begin = at_;
    NARROWCAST_CHECK_INPUT(!take("True"), at_byte(begin, path_),
                           "the array is in Fortran order: convert it with numpy.ascontiguousarray");
    NARROWCAST_CHECK_INPUT(take("False"), at_byte(begin, path_), "the header's fortran_order must be True or False");
    has_order_ = true;
  }

  // (), (3,), (3, 4)
  void read_shape() {
    expect('(');
    shape_.emplace();
    bool has_comma = true;
    while (!take(')')) {
      NARROWCAST_CHECK_INPUT(has_comma, at_byte(at_, path_), "the header must have ',' or ')' here");
      NARROWCAST_CHECK_INPUT(shape_->size() < kMostDimensions, at_byte(at_, path_), "the array has more than ",
                             kMostDimensions, " dimensions");
      shape_->push_back(read_size());
      has_comma = take(',');
    }
    NARROWCAST_CHECK_INPUT(has_comma || shape_->size() != 1, at_byte(at_ - 1, path_),
                           "the shape with one dimension lacks its ','");
  }

  int64_t read_size() {
    skip_spaces();
    const std::string_view rest = text_.substr(at_);
    int64_t size = -1;
    const auto end = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    NARROWCAST_CHECK_INPUT(end.ec == std::errc() && size >= 0, at_byte(at_, path_),
                           "the header must have a size in 0..2^63-1 here");
    at_ += static_cast<size_t>(end.ptr - rest.data());
    return size;
  }

  const std::string& path_;
  std::string_view text_;  // of the file up to the header's end
  size_t at_;
  std::optional<c10::ScalarType> dtype_;
  bool has_order_ = false;
  std::optional<std::vector<int64_t>> shape_;
};

}  // namespace

MappedTensor map_npy(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  MappedTensor tensor = NpyHeaderReader(*file, find_header(*file)).read();
  const std::optional<int64_t> bytes = dense_bytes(tensor.dtype, tensor.shape);
  const auto begin = static_cast<size_t>(tensor.begin);
  NARROWCAST_CHECK_INPUT(bytes.has_value(), at_byte(begin, path), "the array's shape overflows");
  NARROWCAST_CHECK_INPUT(file->size() - tensor.begin == *bytes, at_byte(begin, path),
                         "the array's shape and dtype need ", *bytes, " bytes, but ", file->size() - tensor.begin,
                         " follow the header");
  tensor.file = std::move(file);
  return tensor;
}

}  // namespace narrowcast::files
