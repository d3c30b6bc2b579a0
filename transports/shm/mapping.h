// Mapping: memory that other processes can map too (a memfd: nameless, gone with its last user, even after kill -9).
// Some sandboxes forbid memfd_create. Ranks that are threads of one process still share mappings then; see refusal().
// A resource: unmapped when destroyed. Shared ownership (shared_ptr<Mapping>) is used for mappings because ranks that
// are threads of one process use the very same mapping and end in any order.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "tutti/result.h"

namespace tutti {

class Mapping {
 public:
  // Why no mapping of this process can be passed to another process: the system forbids memfd_create. It is asked once;
  // the answer holds for the life of the process. create() then returns memory that only this process can map (fd() is
  // -1), and adopt() fails with this error, for the call alone (ErrorScope::kCall).
  static const std::optional<Error>& refusal();
  // Zeroed pages; `huge` asks for huge pages (a wish). Errors: kSystem with what to raise (memory, descriptors).
  static Result<std::shared_ptr<Mapping>> create(std::size_t bytes, bool huge);
  // Maps the whole of a memfd received from a peer; takes the descriptor.
  static Result<std::shared_ptr<Mapping>> map(int fd);
  // A second view of memory that this process owns, at another address.
  static Result<std::shared_ptr<Mapping>> map_again(const Mapping& mapping);
  // Turns the private pages at [data, data+bytes), page-aligned, into shared ones; contents and address stay.
  // retire() or, at the latest, the end of the mapping makes them private again. kInvalidArgument for memory that is
  // not private, anonymous and writable.
  static Result<std::shared_ptr<Mapping>> adopt(void* data, std::size_t bytes);

  ~Mapping();
  // By the owner, who needs the mapping no more, though peers may still hold it: adopted memory becomes private again,
  // the pages of other memory are freed (peers then read zeros). A second time it does nothing.
  void retire();
  bool adopted() const { return adopted_; }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  // The first page of the memory. A large mapping of a peer's memory has a second view of it, because of page tables:
  // see kLarge.
  std::byte* first_page() const { return first_page_ != nullptr ? first_page_ : data_; }
  std::size_t size() const { return bytes_; }
  int fd() const { return fd_; }  // to pass on to peers; -1: it was received from one, or refusal() says why

 private:
  static Result<std::shared_ptr<Mapping>> map_open(int fd);  // leaves the descriptor to the caller
  Mapping(int fd, std::byte* data, std::size_t bytes, bool adopted)
      : fd_(fd), data_(data), bytes_(bytes), adopted_(adopted) {}

  int fd_;
  std::byte* data_;
  std::byte* first_page_ = nullptr;  // the second view; null: there is none
  std::size_t bytes_;
  bool adopted_;
  bool retired_ = false;
};

std::size_t page_size();

// The same descriptor with a number above 2 (the old one is closed), so that nobody's prints end in it. -1 stays -1.
int above_standard(int fd);

}  // namespace tutti
