#include "lockstep/training/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "lockstep/runtime/autograd.h"
#include "lockstep/training/atomic_file.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kFormat = "checkpoint 1";
constexpr std::string_view kPrefix = "checkpoint-", kSuffix = ".safetensors";
// Keys of the file's metadata; what the caller adds may not begin with "lockstep.".
constexpr std::string_view kOurs = "lockstep.";
constexpr const char* kFormatKey = "lockstep.format";
constexpr const char* kChecksumKey = "lockstep.checksum";
constexpr const char* kStepKey = "lockstep.step";
constexpr const char* kEpochKey = "lockstep.epoch";
constexpr const char* kBatchKey = "lockstep.batch";
constexpr const char* kSeedKey = "lockstep.random.seed";
constexpr const char* kOffsetKey = "lockstep.random.offset";

struct Section {
  std::string_view prefix;
  StateDict Checkpoint::*tensors;
};
constexpr Section kSections[] = {{"model.", &Checkpoint::model},
                                 {"optimizer.", &Checkpoint::optimizer},
                                 {"schedule.", &Checkpoint::schedule}};

// Over all that the file says, so that a changed digit of a shape is found as well as a changed weight.
std::string checksum(const StateDict& tensors, const Metadata& metadata) {
  uLong crc = crc32_z(0, nullptr, 0);
  auto add = [&](const void* data, size_t bytes) {
    crc = crc32_z(crc, static_cast<const Bytef*>(data), bytes);
  };
  auto add_text = [&](const std::string& text) { add(text.c_str(), text.size() + 1); };
  for (const auto& [name, x] : tensors) {
    add_text(concat(name, '\0', x.dtype(), x.shape()));
    Tensor values = x.to(Device()).contiguous();
    if (values.bytes() > 0) add(values.raw_data(), values.bytes());
  }
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) continue;
    add_text(key);
    add_text(value);
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08lx", crc);
  return text;
}

template <class T>
T number(const std::string& path, const Metadata& metadata, const char* key) {
  auto found = metadata.find(key);
  LOCKSTEP_CHECK(found != metadata.end(), path, ": ", key, " is missing");
  const std::string& text = found->second;
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LOCKSTEP_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0, path, ": ", key,
                 " is \"", text.substr(0, 40), "\", expected a whole number from 0");
  return value;
}

Checkpoint load_file(const std::string& path) {
  Checkpoint checkpoint;
  Metadata metadata = read_safetensors_metadata(path);  // first: "something else" may be large
  auto format = metadata.find(kFormatKey);
  LOCKSTEP_CHECK(format != metadata.end(), path,
                 ": is a safetensors file, but no checkpoint of a Lockstep run (no ", kFormatKey,
                 " in its metadata)");
  LOCKSTEP_CHECK(format->second == kFormat, path, ": the format is \"", format->second.substr(0, 40),
                 "\", this program reads \"", kFormat, "\"");
  StateDict tensors = read_safetensors(path, &metadata);
  std::string found = checksum(tensors, metadata);
  LOCKSTEP_CHECK(metadata[kChecksumKey] == found, path, ": is damaged: the checksum is ", found,
                 ", expected ", metadata[kChecksumKey].substr(0, 40));
  for (auto& [name, x] : tensors) {
    auto section = std::find_if(std::begin(kSections), std::end(kSections),
                                [&](const Section& s) { return name.starts_with(s.prefix); });
    LOCKSTEP_CHECK(section != std::end(kSections), path, ": the tensor \"", name.substr(0, 80),
                   "\" belongs to no part of a checkpoint");
    (checkpoint.*section->tensors).emplace_back(name.substr(section->prefix.size()), x);
  }
  checkpoint.random = {number<uint64_t>(path, metadata, kSeedKey),
                       number<uint64_t>(path, metadata, kOffsetKey)};
  checkpoint.epoch = number<int64_t>(path, metadata, kEpochKey);
  checkpoint.batch = number<int64_t>(path, metadata, kBatchKey);
  checkpoint.step = number<int64_t>(path, metadata, kStepKey);
  std::erase_if(metadata, [](const auto& item) { return item.first.starts_with(kOurs); });
  checkpoint.metadata = std::move(metadata);
  checkpoint.path = path;
  return checkpoint;
}

// The step in a checkpoint's file name; nothing for other files.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) ||
      name.size() <= kPrefix.size() + kSuffix.size())
    return {};
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  int64_t step = 0;
  auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step < 0) return {};
  return step;
}

struct Found {
  int64_t step;
  std::string path;
};

// The checkpoints of a folder, newest first.
std::vector<Found> list(const std::string& folder) {
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (auto step = step_of(entry->path().filename().string()))
      found.push_back({*step, entry->path().string()});
  LOCKSTEP_CHECK(!error, folder, ": cannot be read: ", error.message());
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step > b.step; });
  return found;
}

// Runs after the new checkpoint is safe; what fails here is tried again by the next save.
void tidy_up(const std::string& folder, int64_t saved_step, int keep_last) {
  std::error_code ignored;
  int kept = 0;
  for (const Found& file : list(folder)) {
    if (file.step > saved_step) fs::rename(file.path, file.path + ".superseded", ignored);
    else if (++kept > keep_last && keep_last > 0) fs::remove(file.path, ignored);
  }
  remove_stray_temporaries(folder, kPrefix);
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, int keep_last) {
  LOCKSTEP_CHECK(keep_last >= 0, "[checkpoint] keep_last ", keep_last, ", expected at least 0");
  LOCKSTEP_CHECK(checkpoint.step >= 0 && checkpoint.epoch >= 0 && checkpoint.batch >= 0, "[checkpoint] step ",
                 checkpoint.step, ", epoch ", checkpoint.epoch, ", batch ", checkpoint.batch,
                 ", expected at least 0");
  std::error_code error;
  fs::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, folder, ": cannot be made: ", error.message());

  NoGradGuard no_grad;
  StateDict tensors;
  for (const Section& section : kSections)
    for (const auto& [name, x] : checkpoint.*section.tensors) {
      LOCKSTEP_CHECK(x.defined() && !x.device().is_meta(), "[checkpoint] \"", section.prefix, name,
                     "\" is undefined or on meta");
      tensors.emplace_back(concat(section.prefix, name), x);
    }
  Metadata metadata = checkpoint.metadata;
  for (const auto& [key, value] : metadata)
    LOCKSTEP_CHECK(!key.starts_with(kOurs), "[checkpoint] the metadata key \"", key, "\" is reserved");
  metadata[kFormatKey] = kFormat;
  metadata[kStepKey] = std::to_string(checkpoint.step);
  metadata[kEpochKey] = std::to_string(checkpoint.epoch);
  metadata[kBatchKey] = std::to_string(checkpoint.batch);
  metadata[kSeedKey] = std::to_string(checkpoint.random.seed);
  metadata[kOffsetKey] = std::to_string(checkpoint.random.offset);
  metadata[kChecksumKey] = checksum(tensors, metadata);

  char name[64];
  std::snprintf(name, sizeof name, "checkpoint-%06lld.safetensors", static_cast<long long>(checkpoint.step));
  std::string path = (fs::path(folder) / name).string();
  write_safetensors(path, tensors, metadata);
  tidy_up(folder, checkpoint.step, keep_last);
  return path;
}

Checkpoint load_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return load_file(path);
  std::vector<Found> files = list(path);
  LOCKSTEP_CHECK(!files.empty(), "[checkpoint] no checkpoint-*.safetensors in ", path);
  std::vector<std::string> problems;
  for (const Found& file : files) {
    try {
      Checkpoint checkpoint = load_file(file.path);
      checkpoint.problems = std::move(problems);
      return checkpoint;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& error) {
      problems.push_back(error.what());
    }
  }
  std::string lines;
  for (const std::string& problem : problems) lines += "\n  " + problem;
  throw_error(concat("[checkpoint] no usable checkpoint in ", path, ":", lines));
}

}  // namespace lockstep
