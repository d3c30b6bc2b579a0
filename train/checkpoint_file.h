// The file of one rank in a checkpoint. It starts with a magic number and the length of a JSON header. The header
// lists the slices in the file, and their elements follow it as float32. Each slice can be read separately, so that
// ranks of another training, with another number of ranks or another strategy, can read exactly the slices that they
// need. All functions may be called by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

// A slice of a parameter, of an optimizer moment or of a buffer. `kind` is "value", "moment0", "moment1" or "buffer".
struct StoredSlice {
  ParameterSlice slice;
  // The index of the tensor-parallel part to which the slice belongs; 0 if the parameter is not split.
  std::int64_t split_index = 0;
  std::string kind;
  // float32 [slice.length], in host memory. Undefined in the results of read_slices(): read_elements() reads them.
  Tensor elements;
  std::int64_t offset = 0;  // offset of the elements in the file, in bytes
};

// The length and checksum of a file. The manifest contains those of each file as it was written, to detect damaged
// files.
struct FileChecksum {
  std::int64_t bytes = 0;
  std::uint32_t crc = 0;  // CRC-32 of all bytes of the file
};

// Writes the file and waits until it is on the disk (fsync). Throws Failure, for example if the disk is full or the
// folder is not writable.
FileChecksum write_slices(const std::string& path, const std::vector<StoredSlice>& slices);

// Checks the file and reads its header. Returns the slices without their elements. Throws Failure if the file cannot be
// read, does not have this length and checksum, or is not a checkpoint file.
std::vector<StoredSlice> read_slices(const std::string& path, const FileChecksum& checksum);
// Reads the elements of one slice: float32 [slice.length]. Throws Failure if the file cannot be read or is too short.
Tensor read_elements(const std::string& path, const StoredSlice& slice);

// CRC-32 of a text or of other bytes. `before`: the CRC-32 of the bytes that precede them, if there are any; the result
// is then the CRC-32 of all these bytes.
std::uint32_t crc_of(std::string_view bytes, std::uint32_t before = 0);

// write_text() writes a whole small text file and waits until it is on the disk (fsync). read_text() reads one. Both
// throw Failure if that is not possible.
void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

}  // namespace tutti::train
