#include "lockstep/training/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace lockstep {

using nlohmann::json;

namespace {

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"F64", DType::float64},   {"F32", DType::float32}, {"F16", DType::float16},
                               {"BF16", DType::bfloat16}, {"I64", DType::int64},   {"I32", DType::int32},
                               {"U8", DType::uint8},      {"BOOL", DType::boolean}};

constexpr std::string_view kMetadata = "__metadata__";

// Follows the parser event by event, so that no tree of a hostile header is ever built. Each place in the
// header permits few kinds of events; all others are errors that name the place. Nesting is at most three
// deep for the same reason.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse(concat("the number ", text.substr(0, 40)));
  }
  bool number_integer(number_integer_t value) override { return refuse(concat("the number ", value)); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      LOCKSTEP_CHECK(entry().shape.size() < Shape::kMaxDims, where(), "more than ", Shape::kMaxDims, " axes");
      LOCKSTEP_CHECK(value <= uint64_t(INT64_MAX), where(), value, " is too large");
      entry().shape.push_back(int64_t(value));
    } else if (place_ == Place::offsets) {
      LOCKSTEP_CHECK(offsets_ < 2, where(), "more than two numbers");
      (offsets_++ == 0 ? entry().begin : entry().end) = value;
    } else {
      return refuse(concat("the number ", value));
    }
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::dtype) {
      const TypeName* type =
          std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto& t) { return t.name == text; });
      LOCKSTEP_CHECK(type != std::end(kTypes), where(), "unknown type \"", text.substr(0, 40),
                     "\", expected F64, F32, F16, BF16, I64, I32, U8 or BOOL");
      entry().dtype = type->dtype;
      place_ = Place::tensor;
    } else if (place_ == Place::metadata) {
      header_.metadata[key_] = text;
    } else {
      return refuse(concat("the text \"", text.substr(0, 40), "\""));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = key_ == kMetadata ? Place::metadata : Place::tensor;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::top) {
      key_ = name;
      if (name == kMetadata) {
        LOCKSTEP_CHECK(!has_metadata_, path_, ": \"", kMetadata, "\" is there twice");
        has_metadata_ = true;
        return true;
      }
      header_.entries.emplace_back().name = name;
      has_dtype_ = has_shape_ = has_offsets_ = false;
      LOCKSTEP_CHECK(names_.insert(entry().name).second, path_, ": the name \"", shown(),
                     "\" is there twice");
    } else if (place_ == Place::metadata) {
      key_ = name;
      LOCKSTEP_CHECK(!header_.metadata.contains(name), path_, ": ", kMetadata, " has \"", name.substr(0, 80),
                     "\" twice");
    } else if (name == "dtype") {
      enter(Place::dtype, has_dtype_, name);
    } else if (name == "shape") {
      enter(Place::shape_start, has_shape_, name);
    } else if (name == "data_offsets") {
      enter(Place::offsets_start, has_offsets_, name);
    } else {
      throw_error(concat(where(), "unknown field \"", name.substr(0, 40), "\""));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      LOCKSTEP_CHECK(has_dtype_, where(), "dtype is missing");
      LOCKSTEP_CHECK(has_shape_, where(), "shape is missing");
      LOCKSTEP_CHECK(has_offsets_, where(), "data_offsets is missing");
      place_ = Place::top;
    } else if (place_ == Place::metadata) {
      place_ = Place::top;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_start) {
      place_ = Place::shape;
    } else if (place_ == Place::offsets_start) {
      place_ = Place::offsets;
      offsets_ = 0;
    } else {
      return refuse("a list");
    }
    return true;
  }

  bool end_array() override {
    LOCKSTEP_CHECK(place_ != Place::offsets || offsets_ == 2, where(), offsets_,
                   " numbers, expected begin and end");
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw_error(concat(path_, ": the header is no JSON at byte ", position, ": ", error.what()));
  }

 private:
  enum class Place { start, top, metadata, tensor, dtype, shape_start, shape, offsets_start, offsets };

  SafetensorsHeader::Entry& entry() { return header_.entries.back(); }
  std::string shown() { return entry().name.substr(0, 80); }

  void enter(Place place, bool& seen, const std::string& field) {
    LOCKSTEP_CHECK(!seen, where(), field, " is there twice");
    seen = true;
    place_ = place;
  }

  std::string where() {
    switch (place_) {
      case Place::start: return concat(path_, ": the header: ");
      case Place::top: return concat(path_, ": \"", key_.substr(0, 80), "\": ");
      case Place::metadata: return concat(path_, ": ", kMetadata, " \"", key_.substr(0, 80), "\": ");
      case Place::dtype: return concat(path_, ": dtype of \"", shown(), "\": ");
      case Place::shape_start:
      case Place::shape: return concat(path_, ": shape of \"", shown(), "\": ");
      case Place::offsets_start:
      case Place::offsets: return concat(path_, ": data_offsets of \"", shown(), "\": ");
      case Place::tensor: break;
    }
    return concat(path_, ": \"", shown(), "\": ");
  }

  [[noreturn]] bool refuse(const std::string& found) {
    const char* expected = "";
    switch (place_) {
      case Place::start:
      case Place::top: expected = "an object"; break;
      case Place::metadata:
      case Place::dtype: expected = "a text"; break;
      case Place::shape_start:
      case Place::offsets_start: expected = "a list"; break;
      default: expected = "whole numbers from 0"; break;
    }
    throw_error(concat(where(), found, ", expected ", expected));
  }

  const std::string& path_;
  SafetensorsHeader& header_;
  Place place_ = Place::start;
  std::string key_;
  std::unordered_set<std::string_view> names_;  // of the entries, which a deque does not move
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

// Bytes of a tensor, or throws where they are more than a number can hold: also for the sizes beside a 0,
// since strides are products of some of the sizes.
uint64_t checked_bytes(const std::string& path, const SafetensorsHeader::Entry& entry) {
  uint64_t product = element_size(entry.dtype);
  bool empty = false;
  for (int64_t size : entry.shape) {
    empty |= size == 0;
    LOCKSTEP_CHECK(size == 0 || product <= uint64_t(INT64_MAX) / uint64_t(size), path, ": shape of \"",
                   entry.name.substr(0, 80), "\": the product of ", entry.shape, " is too large");
    if (size != 0) product *= uint64_t(size);
  }
  return empty ? 0 : product;
}

void check_offsets(const std::string& path, const SafetensorsHeader& header, uint64_t data_bytes) {
  std::vector<const SafetensorsHeader::Entry*> by_offset;
  for (const auto& entry : header.entries) {
    auto fail = [&](const auto&... reason) {
      throw_error(concat(path, ": data_offsets of \"", entry.name.substr(0, 80), "\": [", entry.begin, ", ",
                         entry.end, "] ", reason...));
    };
    uint64_t bytes = checked_bytes(path, entry);
    if (entry.begin > entry.end) fail("are reversed");
    if (entry.end > data_bytes) fail("go past the end of the data, which has ", data_bytes, " bytes");
    if (entry.end - entry.begin != bytes)
      fail("span ", entry.end - entry.begin, " bytes, but ", name(entry.dtype), " ", entry.shape, " has ",
           bytes);
    by_offset.push_back(&entry);
  }
  std::stable_sort(by_offset.begin(), by_offset.end(), [](auto* a, auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t at = 0;
  for (const auto* entry : by_offset) {
    LOCKSTEP_CHECK(entry->begin == at, path, ": data_offsets of \"", entry->name.substr(0, 80),
                   "\": begin at ", entry->begin, ", but the data before it ends at ", at,
                   entry->begin < at ? " (overlap)" : " (hole)");
    at = entry->end;
  }
  LOCKSTEP_CHECK(at == data_bytes, path, ": the data has ", data_bytes,
                 " bytes, but the header's data_offsets end at ", at);
}

std::string quoted(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw_error(concat("[safetensors] the text \"", text, "\" is not UTF-8"));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           uint64_t data_bytes) {
  SafetensorsHeader header;
  HeaderReader reader(path, header);
  json::sax_parse(text, &reader);
  check_offsets(path, header, data_bytes);
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::string text = "{";
  auto begin_field = [&](const std::string& name) {
    if (text.size() > 1) text += ",";
    text += quoted(name) + ":";
  };
  if (!header.metadata.empty()) {
    begin_field(std::string(kMetadata));
    const char* separator = "{";
    for (const auto& [key, value] : header.metadata) {
      text += separator + quoted(key) + ":" + quoted(value);
      separator = ",";
    }
    text += "}";
  }
  for (const auto& entry : header.entries) {
    begin_field(entry.name);
    auto type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto& t) { return t.dtype == entry.dtype; });
    text += concat("{\"dtype\":\"", type->name, "\",\"shape\":[");
    for (int i = 0; i < entry.shape.size(); i++) text += concat(i ? "," : "", entry.shape[i]);
    text += concat("],\"data_offsets\":[", entry.begin, ",", entry.end, "]}");
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace lockstep
