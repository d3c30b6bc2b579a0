// PageTable: divides the pages of an address range into blocks. It only keeps accounts; it never touches the pages.
//
// An extent is a run of pages: a block that was allocated, or a free extent. Free extents that touch are merged at
// once. They are kept in lists by size ("two-level segregated fit": Masmano, Ripoll, Crespo and Real, "TLSF: a new
// dynamic memory allocator for real-time systems", ECRTS 2004), so that allocate() and release() never search a list of
// unbounded length. Pages in no extent separate the segments of a heap, so that no block crosses from one segment into
// the next.
//
// It allocates no memory, because malloc() uses it: the caller provides the memory. Not thread-safe, except is_block().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti {

enum class PageState : std::uint8_t {
  kClean,  // free, and all bytes are zero; also a page that was never added
  kDirty,  // free, and the bytes can have any value
  kFirst,  // the first page of a block
  kInner,  // any other page of a block
  kNone,   // in no extent: directly before or behind a segment, or of a removed block
};

class PageTable {
 public:
  static constexpr std::uint32_t kNoPage = 0xffffffff;

  // A range of pages.
  struct Range {
    std::uint32_t first = kNoPage;
    std::uint32_t count = 0;
  };
  // A new block. `dirty_pages`: how many of its pages were dirty. `dirty_range`: the shortest range that contains them;
  // it can contain clean pages, too.
  struct Block {
    std::uint32_t first = kNoPage;  // kNoPage: no free extent was found
    std::uint32_t dirty_pages = 0;
    Range dirty_range;
  };

  // The bytes of memory that the table of `pages` pages needs.
  static constexpr std::size_t bytes_for(std::uint32_t pages) { return pages * (sizeof(Entry) + sizeof(State)); }

  // Call it once, before the functions that change the table. `memory` has bytes_for(pages) zero bytes, is aligned to
  // 16 bytes, and must outlive this object.
  void create(void* memory, std::uint32_t pages);

  // Adds a free extent of clean pages. The page before and the page behind it become separators (kNone), so they must
  // exist and must not be in an extent. Takes constant time, so that a large segment costs nothing until it is used.
  void add(Range range);
  // Forgets all free extents, without changing the states of their pages. The blocks remain. resize() and release()
  // must not be called for a block next to a forgotten extent; remove() and length() may.
  void drop_free_extents();

  // Allocates a block of `count` > 0 pages, whose first page is a multiple of `alignment` (a power of two). It needs a
  // free extent of n = count + alignment - 1 pages. It can miss extents of n to 9/8 n pages, but never longer ones.
  // The time of a call grows in proportion to `count` + `alignment`.
  Block allocate(std::uint32_t count, std::uint32_t alignment);
  // Changes the length of a block to `count` > 0 pages without moving it. Returns false if too few pages directly
  // behind it are free. Pages that are cut off become free and dirty.
  bool resize(std::uint32_t first, std::uint32_t count);
  // Makes the pages of a block free and dirty.
  void release(std::uint32_t first);
  // Takes a block out of the table: its pages are in state kNone then.
  void remove(std::uint32_t first);

  // The number of dirty pages in all free extents.
  std::uint32_t dirty_pages() const { return dirty_pages_; }
  // Calls `clean(extent)` for free extents with dirty pages until dirty_pages() is at most `most`. Longer extents come
  // first (extents of one list in any order). `clean` makes the pages of the extent zero, or returns false if it
  // cannot. After kMostFailures failures the function ends.
  template <class Function>
  void clean_extents(std::uint32_t most, Function clean) {
    int failures = 0;
    for (std::uint32_t list = kClasses * kLists; list-- > 0;) {
      for (std::uint32_t extent = heads_[list]; extent != kNoPage; extent = entries_[extent].next) {
        if (dirty_pages_ <= most) return;
        if (entries_[extent].dirty == 0) continue;
        if (clean(Range{extent, length(extent)})) {
          mark_clean({extent, length(extent)});
        } else if (++failures == kMostFailures) {
          return;
        }
      }
    }
  }

  PageState state(std::uint32_t page) const {
    return static_cast<PageState>(states_[page].load(std::memory_order_relaxed));
  }
  // Any thread may call it for a page of a block that is not released during the call.
  bool is_block(std::uint32_t page) const {
    return state(page) == PageState::kFirst || state(page) == PageState::kInner;
  }
  // The length of an extent in pages. `first` is its first page.
  std::uint32_t length(std::uint32_t first) const { return entries_[first].length; }

 private:
  // `length` is valid in the first and in the last entry of an extent. The other fields are valid only in the first
  // entry of a free extent: `next` and `previous` link the extents of a list, and `dirty` is the number of dirty pages
  // in the extent.
  struct Entry {
    std::uint32_t length;
    std::uint32_t next;
    std::uint32_t previous;
    std::uint32_t dirty;
  };
  static_assert(sizeof(Entry) == 16);
  using State = std::atomic<std::uint8_t>;  // a PageState
  static_assert(sizeof(State) == 1);

  // List s of class c has the free extents of at least 2^c + s * 2^c/8 pages that are too short for the next list.
  static constexpr std::uint32_t kClasses = 32;
  static constexpr std::uint32_t kLists = 8;
  // The greatest number of extents that allocate() looks at in the list to which an extent of the requested size
  // belongs. These extents can be too short. It looks at them so that a freed block serves the next request of the same
  // size.
  static constexpr int kLooks = 16;
  // The system does not take back pages that the program has locked (mlock). So some failures are expected, but not
  // many.
  static constexpr int kMostFailures = 8;
  struct List {
    std::uint32_t size_class;
    std::uint32_t number;
  };
  static List list_of(std::uint32_t pages);

  bool is_free(std::uint32_t page) const {
    return state(page) == PageState::kClean || state(page) == PageState::kDirty;
  }
  void set_state(Range range, PageState state);
  void set_length(Range extent);
  void link(Range extent, std::uint32_t dirty);  // adds a free extent, of which `dirty` pages are dirty, to its list
  std::uint32_t count_dirty(Range range) const;
  void mark_clean(Range extent);
  void unlink(std::uint32_t first);
  std::uint32_t find_extent(std::uint32_t pages) const;  // the first page of a long enough free extent, or kNoPage
  std::uint32_t find_in_list(List list, std::uint32_t pages) const;
  std::uint32_t find_longer(List list) const;  // an extent of the next list after `list` that has one, or kNoPage
  // Makes the pages of `range`, which are in no free list, a block. At most `dirty` of them are dirty.
  void cut_block(Range range, std::uint32_t dirty, Block& block);

  // Both indexed by page. They are separate arrays, because every page needs a state, but only the first and the last
  // page of an extent need an entry. So a large block touches little memory of the table.
  Entry* entries_ = nullptr;
  State* states_ = nullptr;
  std::uint32_t pages_ = 0;
  std::uint32_t dirty_pages_ = 0;
  std::uint32_t classes_ = 0;                   // bit c: some list of class c is not empty
  std::array<std::uint8_t, kClasses> lists_{};  // element c, bit s: list s of class c is not empty
  std::array<std::uint32_t, kClasses * kLists> heads_{};
};

}  // namespace tutti
