#include "trainer/base/files/safetensors_header.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

using Json = nlohmann::json;

constexpr const char* kMetadataKey = "__metadata__";

constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 16> kDtypes = {{
    {"F64", c10::ScalarType::Double},
    {"C64", c10::ScalarType::ComplexFloat},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U64", c10::ScalarType::UInt64},
    {"U32", c10::ScalarType::UInt32},
    {"U16", c10::ScalarType::UInt16},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
}};

// A text that counts how far it was read.
struct CountedBytes {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  reference operator*() const { return *at; }
  CountedBytes& operator++() {
    ++at;
    ++*read;
    return *this;
  }
  bool operator==(const CountedBytes& other) const { return at == other.at; }

  const char* at;
  int64_t* read;  // number of bytes read
};

// Handles the parser's events. The position in the header decides which events are allowed:
//   header { name: tensor { "dtype": string, "shape": [..], "data_offsets": [begin, end] } ..., "__metadata__": {..} }
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  // Parses the header. This object gets its parts as they are read.
  void read(std::string_view json) {
    Json::sax_parse(CountedBytes{json.data(), &read_}, CountedBytes{json.data() + json.size(), &read_}, this);
  }

  SafetensorsHeader take_header() { return std::move(header_); }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader) {
      place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
      entry_ = {};
      fields_.clear();
    } else {
      fail("an object");
    }
    return true;
  }

  bool key(std::string& key) override {
    key_ = key;
    std::set<std::string>& siblings = place_ == Place::kHeader ? names_ : fields_;
    NARROWCAST_CHECK_INPUT(siblings.insert(key).second, here(), "header: duplicate key ", in_quotes(key));
    if (place_ == Place::kHeader) {
      name_ = key;
    } else if (place_ == Place::kTensor) {
      NARROWCAST_CHECK_INPUT(key == "dtype" || key == "shape" || key == "data_offsets", here(), "header: tensor ",
                             in_quotes(name_), " has the unknown key ", in_quotes(key));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      NARROWCAST_CHECK_INPUT(fields_.size() == 3, here(), "header: tensor ", in_quotes(name_),
                             " lacks dtype, shape or data_offsets");
      header_.tensors.emplace_back(name_, std::move(entry_));
    }
    place_ = place_ == Place::kHeader ? Place::kEnd : Place::kHeader;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      offsets_.clear();
    } else {
      fail("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets) {
      NARROWCAST_CHECK_INPUT(offsets_.size() == 2, here(), "header: tensor ", in_quotes(name_), " has ",
                             offsets_.size(), " data_offsets instead of 2");
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
    }
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    NARROWCAST_CHECK_INPUT(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), here(),
                           "header: tensor ", in_quotes(name_), " has the number ", value, " above 2^63-1");
    if (place_ == Place::kShape) {
      NARROWCAST_CHECK_INPUT(entry_.shape.size() < kMostDimensions, here(), "header: tensor ", in_quotes(name_),
                             " has more than ", kMostDimensions, " dimensions");
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets && offsets_.size() < 3) {
      offsets_.push_back(static_cast<int64_t>(value));
    } else {
      fail("a number");
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      const auto dtype = dtype_of_name(value);
      NARROWCAST_CHECK_INPUT(dtype.has_value(), here(), "header: tensor ", in_quotes(name_), " has the dtype ",
                             in_quotes(value), ", which is unknown or not supported");
      entry_.dtype = *dtype;
    } else {
      fail("a string");
    }
    return true;
  }

  bool null() override { return fail("null"); }
  bool boolean(bool) override { return fail("a boolean"); }
  bool number_integer(int64_t) override { return fail("a negative number"); }
  bool number_float(double, const std::string&) override { return fail("a fractional or huge number"); }
  bool binary(Json::binary_t&) override { return fail("binary data"); }
  bool parse_error(size_t read, const std::string&, const Json::exception&) override {  // Includes the header's end.
    NARROWCAST_CHECK_INPUT(false, at_byte(kLengthBytes + static_cast<int64_t>(read) - 1, path_),
                           "header: not valid JSON");
  }

 private:
  enum class Place { kStart, kHeader, kMetadata, kTensor, kShape, kOffsets, kEnd };

  // The beginning of a message about the part that was read last.
  std::string here() const { return at_byte(kLengthBytes + read_ - 1, path_); }

  bool fail(const char* what) const {
    const bool is_inside = place_ != Place::kStart && place_ != Place::kHeader;
    const std::string owner = is_inside ? in_quotes(name_) + ", " : "";
    NARROWCAST_CHECK_INPUT(false, here(), "header: ", owner, in_quotes(key_), " holds ", what,
                           ", which is not allowed");
  }

  const std::string& path_;
  int64_t read_ = 0;  // bytes of the header; after a number one more
  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  std::string name_;              // the current key of the header itself
  std::string key_;               // the last key read at any place
  std::set<std::string> names_;   // keys of the header so far
  std::set<std::string> fields_;  // keys of the current tensor or of the metadata so far
  TensorEntry entry_;
  std::vector<int64_t> offsets_;
};

// Sorts by the position of the bytes. Tensors at the same position, as empty ones may be, are sorted by name.
void sort_by_range(SafetensorsHeader& header) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second.begin, a.second.end, a.first) < std::tie(b.second.begin, b.second.end, b.first);
  });
}

// The data that follow the header in a file.
struct DataPlace {
  int64_t begin;  // a byte of the file
  int64_t bytes;
};

// Each tensor's range must have its shape's size, and together they must fill the data without a gap.
void check_ranges(const SafetensorsHeader& header, const DataPlace& data, const std::string& path) {
  int64_t covered = 0;
  const auto here = [&] { return at_byte(data.begin + std::min(covered, data.bytes), path); };
  for (const auto& [name, entry] : header.tensors) {
    const auto bytes = dense_bytes(entry.dtype, entry.shape);
    NARROWCAST_CHECK_INPUT(bytes.has_value(), here(), "header: tensor ", in_quotes(name),
                           " has a shape that overflows");
    NARROWCAST_CHECK_INPUT(entry.begin == covered, here(), "header: tensor ", in_quotes(name), " begins at byte ",
                           entry.begin, " of the data instead of at byte ", covered);
    NARROWCAST_CHECK_INPUT(entry.end >= entry.begin && entry.end - entry.begin == *bytes, here(), "header: tensor ",
                           in_quotes(name), " has the range ", entry.begin, "..", entry.end,
                           ", but shape and dtype need ", *bytes, " bytes");
    covered = entry.end;
  }
  NARROWCAST_CHECK_INPUT(covered == data.bytes, here(), "the header describes ", covered, " bytes of data, but ",
                         data.bytes, " follow it");
}

void check_name(const std::string& name, const std::string& path) {
  TORCH_CHECK_VALUE(!decode_utf8(name).first_bad_byte, path, ": cannot hold the name or metadata ", in_quotes(name),
                    ": it is not UTF-8");
}

}  // namespace

std::optional<std::string_view> dtype_name(c10::ScalarType dtype) {
  const auto* const entry =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& known) { return known.second == dtype; });
  return entry == kDtypes.end() ? std::nullopt : std::optional(entry->first);
}

std::optional<c10::ScalarType> dtype_of_name(std::string_view name) {
  const auto* const entry =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& known) { return known.first == name; });
  return entry == kDtypes.end() ? std::nullopt : std::optional(entry->second);
}

std::optional<int64_t> dense_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  int64_t strides_product = static_cast<int64_t>(c10::elementSize(dtype));
  bool is_empty = false;
  for (const int64_t size : shape) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(strides_product, std::max<int64_t>(size, 1), &strides_product)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : strides_product;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& path) {
  // The JSON library skips a byte order mark, and treats a zero byte as the end of the text.
  NARROWCAST_CHECK_INPUT(json.substr(0, 1) == "{", at_byte(kLengthBytes, path), "the header does not begin with '{'");
  const size_t zero = json.find('\0');
  NARROWCAST_CHECK_INPUT(zero == std::string_view::npos, at_byte(kLengthBytes + static_cast<int64_t>(zero), path),
                         "header: not valid JSON, it has a zero byte");
  HeaderReader reader(path);
  reader.read(json);
  SafetensorsHeader header = reader.take_header();
  sort_by_range(header);
  check_ranges(header, {.begin = kLengthBytes + std::ssize(json), .bytes = data_bytes}, path);
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header, const std::string& path) {
  Json json = Json::object();
  for (const auto& [key, value] : header.metadata) {
    check_name(key, path);
    check_name(value, path);
    json[kMetadataKey][key] = value;
  }
  for (const auto& [name, entry] : header.tensors) {
    check_name(name, path);
    TORCH_CHECK_VALUE(name != kMetadataKey, path, ": a tensor cannot have the name ", kMetadataKey);
    json[name] = {
        {"dtype", dtype_name(entry.dtype).value()}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  TORCH_CHECK_VALUE(text.size() <= static_cast<size_t>(kLargestHeader), path, ": the header would be ", text.size(),
                    " bytes, above the limit of ", kLargestHeader);
  return text;
}

}  // namespace narrowcast::files
