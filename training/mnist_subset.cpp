// The 5,000-digit subset of MNIST: a CSV file without a header line.
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "lockstep/training/data_loader.h"
#include "lockstep/training/input_file.h"
#include "lockstep/training/mnist.h"

namespace lockstep {

namespace {

constexpr int64_t kPixels = 28 * 28, kMostDigits = 70000;
constexpr size_t kLongestLine = (kPixels + 1) * 4 + 1;  // "255," each, and a carriage return

// Lines of a file, each at most `longest` bytes.
class LineReader {
 public:
  LineReader(InputFile& file, size_t longest) : file_(file), longest_(longest), buffer_(1 << 16) {}

  // False at the end. The view holds until the next call.
  bool next(std::string_view& line) {
    for (;;) {
      std::string_view rest(buffer_.data() + begin_, end_ - begin_);
      size_t length = rest.find('\n');
      bool last = length == rest.npos && ended_;
      if (last) length = rest.size();
      if (last && rest.empty()) return false;
      if (length != rest.npos) {
        number_++;
        line = rest.substr(0, length);
        begin_ += length + (last ? 0 : 1);
        if (line.ends_with('\r')) line.remove_suffix(1);
        return true;
      }
      LOCKSTEP_CHECK(rest.size() <= longest_, file_.path(), ": line ", number_ + 1, " is longer than ",
                     longest_, " bytes; this is no digit");
      std::memmove(buffer_.data(), rest.data(), rest.size());
      begin_ = 0;
      end_ = rest.size();
      size_t got = file_.read_some(std::as_writable_bytes(std::span(buffer_).subspan(end_)));
      ended_ = got < buffer_.size() - end_;
      end_ += got;
    }
  }
  int64_t number() const { return number_; }  // of the last line, from 1

 private:
  InputFile& file_;
  size_t longest_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool ended_ = false;
  int64_t number_ = 0;
};

// A whole number from 0 to `most`, with a fraction of zeros allowed ("7.0"), and the comma behind it.
int take_number(std::string_view& line, int most, const LineReader& lines, const InputFile& file,
                int64_t column) {
  std::string_view field = line.substr(0, line.find(','));
  line.remove_prefix(std::min(line.size(), field.size() + 1));
  int value = -1;
  auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  std::string_view rest = field.substr(size_t(end - field.data()));
  bool whole = error == std::errc() && (rest.empty() || rest == "." || rest == ".0");
  LOCKSTEP_CHECK(whole && 0 <= value && value <= most, file.path(), ": line ", lines.number(), ", column ",
                 column, ": \"", field.substr(0, 20), "\", expected a whole number from 0 to ", most);
  return value;
}

}  // namespace

Mnist load_mnist_subset(const std::string& path, Split split, uint64_t seed) {
  InputFile file(path);
  LineReader lines(file, kLongestLine);
  std::vector<uint8_t> pixels, labels;
  std::string_view line;
  while (lines.next(line)) {
    LOCKSTEP_CHECK(int64_t(labels.size()) < kMostDigits, path, ": more than ", kMostDigits, " lines");
    int64_t commas = std::count(line.begin(), line.end(), ',');
    LOCKSTEP_CHECK(commas == kPixels, path, ": line ", lines.number(), " has ", commas + 1,
                   " columns, expected 784 pixels and a label");
    for (int64_t i = 0; i < kPixels; i++)
      pixels.push_back(uint8_t(take_number(line, 255, lines, file, i + 1)));
    labels.push_back(uint8_t(take_number(line, 9, lines, file, kPixels + 1)));
  }
  LOCKSTEP_CHECK(!labels.empty(), path, ": the file is empty");
  file.expect_end("the last line");

  std::array<std::vector<int64_t>, 10> classes;
  for (size_t i = 0; i < labels.size(); i++) classes[labels[i]].push_back(int64_t(i));
  std::vector<bool> training(labels.size());
  for (size_t c = 0; c < classes.size(); c++) {
    int64_t count = int64_t(classes[c].size());
    std::vector<int64_t> order = epoch_order(count, seed, int64_t(c));
    for (int64_t i = 0; i < count * 4 / 5; i++) training[size_t(classes[c][size_t(order[size_t(i)])])] = true;
  }
  std::vector<uint8_t> chosen_pixels, chosen_labels;
  for (size_t i = 0; i < labels.size(); i++) {
    if (training[i] != (split == Split::train)) continue;
    chosen_pixels.insert(chosen_pixels.end(), pixels.begin() + int64_t(i) * kPixels,
                         pixels.begin() + int64_t(i + 1) * kPixels);
    chosen_labels.push_back(labels[i]);
  }
  int64_t count = int64_t(chosen_labels.size());
  LOCKSTEP_CHECK(count > 0, path, ": ", labels.size(),
                 " digits are too few for a split into training and test");
  return {from_vector(chosen_pixels, {count, 28, 28}), from_vector(chosen_labels, {count}),
          concat("MNIST, 5,000-digit subset: ", count, " of its ", labels.size(), " digits for ",
                 split == Split::train ? "training" : "testing", ", from ", path)};
}

}  // namespace lockstep
