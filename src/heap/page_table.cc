#include "heap/page_table.h"

#include <algorithm>
#include <bit>

namespace tutti {

void PageTable::create(void* memory, std::uint32_t pages) {
  entries_ = static_cast<Entry*>(memory);
  states_ = reinterpret_cast<State*>(entries_ + pages);
  pages_ = pages;
  heads_.fill(kNoPage);
}

PageTable::List PageTable::list_of(std::uint32_t pages) {
  const auto size_class = static_cast<std::uint32_t>(std::bit_width(pages)) - 1;
  // The three bits after the highest 1 bit of `pages` are the number of the list.
  const std::uint64_t scaled = (std::uint64_t{pages} << 3) >> size_class;
  return {size_class, static_cast<std::uint32_t>(scaled) % kLists};
}

void PageTable::set_state(Range range, PageState state) {
  for (std::uint32_t page = range.first; page < range.first + range.count; ++page) {
    states_[page].store(static_cast<std::uint8_t>(state), std::memory_order_relaxed);
  }
}

void PageTable::set_length(Range extent) {
  entries_[extent.first].length = entries_[extent.first + extent.count - 1].length = extent.count;
}

std::uint32_t PageTable::count_dirty(Range range) const {
  std::uint32_t dirty = 0;
  for (std::uint32_t page = range.first; page < range.first + range.count; ++page) {
    dirty += state(page) == PageState::kDirty ? 1 : 0;
  }
  return dirty;
}

void PageTable::link(Range extent, std::uint32_t dirty) {
  set_length(extent);
  entries_[extent.first].dirty = dirty;
  const List list = list_of(extent.count);
  std::uint32_t& head = heads_[list.size_class * kLists + list.number];
  Entry& entry = entries_[extent.first];
  entry.next = head;
  entry.previous = kNoPage;
  if (head != kNoPage) entries_[head].previous = extent.first;
  head = extent.first;
  classes_ |= std::uint32_t{1} << list.size_class;
  lists_[list.size_class] |= static_cast<std::uint8_t>(1U << list.number);
}

void PageTable::unlink(std::uint32_t first) {
  const Entry& entry = entries_[first];
  if (entry.next != kNoPage) entries_[entry.next].previous = entry.previous;
  if (entry.previous != kNoPage) {
    entries_[entry.previous].next = entry.next;
    return;
  }
  const List list = list_of(entry.length);
  heads_[list.size_class * kLists + list.number] = entry.next;
  if (entry.next != kNoPage) return;
  lists_[list.size_class] &= static_cast<std::uint8_t>(~(1U << list.number));
  if (lists_[list.size_class] == 0) classes_ &= ~(std::uint32_t{1} << list.size_class);
}

void PageTable::add(Range range) {
  set_state({range.first - 1, 1}, PageState::kNone);
  set_state({range.first + range.count, 1}, PageState::kNone);
  link(range, 0);
}

void PageTable::drop_free_extents() {
  heads_.fill(kNoPage);
  classes_ = 0;
  lists_.fill(0);
  dirty_pages_ = 0;
}

std::uint32_t PageTable::find_in_list(List list, std::uint32_t pages) const {
  std::uint32_t extent = heads_[list.size_class * kLists + list.number];
  for (int look = 0; look < kLooks && extent != kNoPage; ++look, extent = entries_[extent].next) {
    if (length(extent) >= pages) return extent;
  }
  return kNoPage;
}

std::uint32_t PageTable::find_longer(List list) const {
  const unsigned same_class = lists_[list.size_class] & ~((2U << list.number) - 1);
  if (same_class != 0) {
    return heads_[list.size_class * kLists + static_cast<std::uint32_t>(std::countr_zero(same_class))];
  }
  const std::uint64_t longer = classes_ & ~((std::uint64_t{2} << list.size_class) - 1);
  if (longer == 0) return kNoPage;
  const auto size_class = static_cast<std::uint32_t>(std::countr_zero(longer));
  return heads_[size_class * kLists + static_cast<std::uint32_t>(std::countr_zero(unsigned{lists_[size_class]}))];
}

std::uint32_t PageTable::find_extent(std::uint32_t pages) const {
  const List list = list_of(pages);
  const std::uint32_t same_size = find_in_list(list, pages);
  return same_size != kNoPage ? same_size : find_longer(list);
}

void PageTable::cut_block(Range range, std::uint32_t dirty, Block& block) {
  block.first = range.first;
  for (std::uint32_t page = range.first; dirty > 0 && page < range.first + range.count; ++page) {
    if (state(page) != PageState::kDirty) continue;
    if (block.dirty_pages++ == 0) block.dirty_range.first = page;
    block.dirty_range.count = page - block.dirty_range.first + 1;
    --dirty;
  }
  dirty_pages_ -= block.dirty_pages;
  set_state(range, PageState::kInner);
  set_state({range.first, 1}, PageState::kFirst);
  set_length(range);
}

PageTable::Block PageTable::allocate(std::uint32_t count, std::uint32_t alignment) {
  Block block;
  const std::uint64_t needed = std::uint64_t{count} + alignment - 1;  // enough, wherever the free extent starts
  if (count == 0 || needed >= pages_) return block;
  const std::uint32_t extent = find_extent(static_cast<std::uint32_t>(needed));
  if (extent == kNoPage) return block;
  const std::uint32_t end = extent + length(extent);
  std::uint32_t dirty = entries_[extent].dirty;
  unlink(extent);
  const std::uint32_t first = (extent + alignment - 1) & ~(alignment - 1);
  cut_block({first, count}, dirty, block);
  dirty -= block.dirty_pages;
  // The pages before the block are fewer than `alignment`, so the dirty ones among them are counted one by one. The
  // other dirty pages are behind the block.
  const std::uint32_t dirty_before = count_dirty({extent, first - extent});
  if (first > extent) link({extent, first - extent}, dirty_before);
  if (end > first + count) link({first + count, end - first - count}, dirty - dirty_before);
  return block;
}

bool PageTable::resize(std::uint32_t first, std::uint32_t count) {
  const std::uint32_t old_count = length(first);
  if (count < old_count) {
    const Range rest{first + count, old_count - count};
    set_length({first, count});
    set_length(rest);
    release(rest.first);
  } else if (count > old_count) {
    const std::uint32_t behind = first + old_count;
    const std::uint32_t missing = count - old_count;
    if (!is_free(behind) || length(behind) < missing) return false;
    const std::uint32_t free_count = length(behind);
    const std::uint32_t dirty = entries_[behind].dirty;
    unlink(behind);
    Block grown;
    cut_block({behind, missing}, dirty, grown);
    if (free_count > missing) link({behind + missing, free_count - missing}, dirty - grown.dirty_pages);
    set_state({behind, 1}, PageState::kInner);
    set_length({first, count});
  }
  return true;
}

void PageTable::release(std::uint32_t first) {
  Range extent{first, length(first)};
  std::uint32_t dirty = extent.count;
  set_state(extent, PageState::kDirty);
  dirty_pages_ += extent.count;
  if (is_free(first - 1)) {
    extent.first -= length(first - 1);
    extent.count += length(first - 1);
    dirty += entries_[extent.first].dirty;
    unlink(extent.first);
  }
  const std::uint32_t behind = extent.first + extent.count;
  if (is_free(behind)) {
    extent.count += length(behind);
    dirty += entries_[behind].dirty;
    unlink(behind);
  }
  link(extent, dirty);
}

void PageTable::remove(std::uint32_t first) { set_state({first, length(first)}, PageState::kNone); }

void PageTable::mark_clean(Range extent) {
  set_state(extent, PageState::kClean);
  dirty_pages_ -= entries_[extent.first].dirty;
  entries_[extent.first].dirty = 0;
}

}  // namespace tutti
