// Mapping: memory that other processes can map as well. It is a memfd: a file without a name that the kernel deletes
// when its last user exits, even after kill -9. Some sandboxes forbid memfd_create; in that case only ranks that are
// threads of one process can share mappings, see refusal().
//
// A resource: the memory is unmapped when the object is destroyed. Mappings are owned by shared_ptr, because ranks
// that are threads of one process use the same mapping and are destroyed in any order.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "tutti/result.h"

namespace tutti {

class Mapping {
 public:
  // The error that explains why this process cannot pass mappings to other processes: the operating system forbids
  // memfd_create. It is tested once, and the result holds until the process exits. If there is such an error,
  // create() returns memory that only this process can map (fd() is -1), and adopt() fails with this error, but with
  // the scope ErrorScope::kCall.
  static const std::optional<Error>& refusal();
  // Allocates zeroed pages. `huge` requests huge pages; the kernel may ignore that. Errors: kSystem, with the limit
  // that must be raised (memory, descriptors).
  static Result<std::shared_ptr<Mapping>> create(std::size_t bytes, bool huge);
  // Maps all of a memfd that was received from a peer. Takes ownership of the descriptor.
  static Result<std::shared_ptr<Mapping>> map(int fd);
  // Creates a second view, at another address, of memory that this process owns.
  static Result<std::shared_ptr<Mapping>> map_again(const Mapping& mapping);
  // Converts the private pages at [data, data+bytes) into shared pages. The range must be page-aligned. Contents and
  // address do not change. retire() makes the pages private again; otherwise the destructor does. Errors:
  // kInvalidArgument if the memory is not private, anonymous and writable.
  static Result<std::shared_ptr<Mapping>> adopt(void* data, std::size_t bytes);

  ~Mapping();
  // The owner calls it when it no longer needs the mapping, although peers may still have it mapped. Adopted memory
  // becomes private again. The pages of other memory are freed, and peers then read zeros. A second call has no
  // effect.
  void retire();
  bool adopted() const { return adopted_; }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  // The first page of the memory. A large mapping of a peer's memory has a separate view of this page, because of
  // page tables: see kLarge.
  std::byte* first_page() const { return first_page_ != nullptr ? first_page_ : data_; }
  std::size_t size() const { return bytes_; }
  // Descriptor that can be passed to peers. -1 if the mapping was received from a peer, or if refusal() contains an
  // error.
  int fd() const { return fd_; }

 private:
  static Result<std::shared_ptr<Mapping>> map_open(int fd);  // does not take ownership of the descriptor
  Mapping(int fd, std::byte* data, std::size_t bytes, bool adopted)
      : fd_(fd), data_(data), bytes_(bytes), adopted_(adopted) {}

  int fd_;
  std::byte* data_;
  std::byte* first_page_ = nullptr;  // the separate view; null if there is none
  std::size_t bytes_;
  bool adopted_;
  bool retired_ = false;
};

// The page size of the operating system, in bytes.
std::size_t page_size();

// Returns a duplicate of `fd` with a number above 2 and closes `fd`, if its number is at most 2. So text that a
// program prints to its standard streams is never written into a descriptor of ours. -1 stays -1.
int above_standard(int fd);

}  // namespace tutti
