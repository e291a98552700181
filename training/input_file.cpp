#include "lockstep/training/input_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/runtime/check.h"

namespace lockstep {

namespace {

constexpr size_t kBufferBytes = 64 << 10;
// A deflate block makes at most 258 bytes of 2 bits: RFC 1951, 3.2.5.
constexpr uint64_t kMostExpansion = 1032;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

struct InputFile::State {
  std::string path;
  std::unique_ptr<std::FILE, FileCloser> file;
  uint64_t bytes = 0;
  bool gzip = false, ended = false;
  z_stream inflater{};
  std::unique_ptr<std::byte[]> buffer;  // compressed

  ~State() {
    if (gzip) inflateEnd(&inflater);
  }

  size_t read_file(void* out, size_t count) {
    size_t got = std::fread(out, 1, count, file.get());
    LOCKSTEP_CHECK(!std::ferror(file.get()), path, ": cannot be read: ", std::strerror(errno));
    return got;
  }

  size_t inflate_some(std::span<std::byte> out) {
    size_t done = 0;
    while (done < out.size() && !ended) {
      if (inflater.avail_in == 0) {
        inflater.next_in = reinterpret_cast<Bytef*>(buffer.get());
        inflater.avail_in = uInt(read_file(buffer.get(), kBufferBytes));
        LOCKSTEP_CHECK(inflater.avail_in > 0, path, ": the gzip data is cut off after ", inflater.total_out,
                       " bytes of content");
      }
      uInt room = uInt(std::min<size_t>(out.size() - done, 1 << 30));
      inflater.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      inflater.avail_out = room;
      int status = inflate(&inflater, Z_NO_FLUSH);
      done += room - inflater.avail_out;
      LOCKSTEP_CHECK(status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR, path,
                     ": the gzip data is damaged after ", inflater.total_out,
                     " bytes of content: ", inflater.msg ? inflater.msg : zError(status));
      ended = status == Z_STREAM_END;
    }
    return done;
  }
};

InputFile::InputFile(const std::string& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  struct stat info;
  LOCKSTEP_CHECK(::stat(path.c_str(), &info) == 0, path, ": ", std::strerror(errno));
  LOCKSTEP_CHECK(S_ISREG(info.st_mode), path, ": is not a regular file");
  s.file.reset(std::fopen(path.c_str(), "rbe"));
  LOCKSTEP_CHECK(s.file, path, ": cannot be opened: ", std::strerror(errno));
  s.bytes = uint64_t(info.st_size);
  if (!path.ends_with(".gz")) return;

  unsigned char magic[2] = {};
  bool gzip = s.read_file(magic, 2) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
  std::rewind(s.file.get());
  if (!gzip) return;
  s.buffer = std::make_unique<std::byte[]>(kBufferBytes);
  int status = inflateInit2(&s.inflater, 15 + 16);  // the largest window, gzip framing with its CRC
  LOCKSTEP_CHECK(status == Z_OK, path, ": zlib does not start: ", zError(status));
  s.gzip = true;
}

InputFile::~InputFile() = default;

const std::string& InputFile::path() const { return state_->path; }

uint64_t InputFile::size_limit() const {
  return state_->gzip ? state_->bytes * kMostExpansion : state_->bytes;
}

size_t InputFile::read_some(std::span<std::byte> out) {
  return state_->gzip ? state_->inflate_some(out) : state_->read_file(out.data(), out.size());
}

void InputFile::read(std::span<std::byte> out, const char* what) {
  size_t got = read_some(out);
  LOCKSTEP_CHECK(got == out.size(), path(), ": the file ends in ", what, ": ", got, " of ", out.size(),
                 " bytes are there");
}

void InputFile::expect_end(const char* what) {
  State& s = *state_;
  std::byte extra;
  bool more = read_some({&extra, 1}) > 0;
  // Reading up to the end of the gzip member has checked its CRC. Nothing may stand behind it either.
  if (s.gzip && !more) more = s.inflater.avail_in > 0 || s.read_file(&extra, 1) > 0;
  LOCKSTEP_CHECK(!more, s.path, ": more data follows ", what, "; the header or the file is wrong");
}

}  // namespace lockstep
