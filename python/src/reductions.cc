// User reductions for operations and types that the C++ library does not have: the bit operations, and arithmetic on
// 16-bit integers. Python calls select a reduction by its number.
#include <cstring>
#include <string>
#include <vector>

#include "core.h"

namespace tutti::python {
namespace {

struct BitAnd {
  template <class T>
  T operator()(T left, T right) const {
    return static_cast<T>(left & right);
  }
};
struct BitOr {
  template <class T>
  T operator()(T left, T right) const {
    return static_cast<T>(left | right);
  }
};
struct BitXor {
  template <class T>
  T operator()(T left, T right) const {
    return static_cast<T>(left ^ right);
  }
};
// Sum and Product are for 16-bit integers. They compute in unsigned 32-bit integers, because overflow of signed
// integers is undefined and unsigned integers wrap. The cast to T keeps the lower 16 bits.
struct Sum {
  template <class T>
  T operator()(T left, T right) const {
    return static_cast<T>(static_cast<std::uint32_t>(left) + static_cast<std::uint32_t>(right));
  }
};
struct Product {
  template <class T>
  T operator()(T left, T right) const {
    return static_cast<T>(static_cast<std::uint32_t>(left) * static_cast<std::uint32_t>(right));
  }
};
struct Minimum {
  template <class T>
  T operator()(T left, T right) const {
    return right < left ? right : left;
  }
};
struct Maximum {
  template <class T>
  T operator()(T left, T right) const {
    return left < right ? right : left;
  }
};

// Combines `count` elements of `left` and `right`. `context` is not used as a pointer: its value is the number of
// values of type T in one element, which is more than 1 if the bytes of an element are combined one by one.
template <class T, class Op>
void combine(const void* left, const void* right, void* result, std::size_t count, void* context) {
  const auto* a = static_cast<const T*>(left);
  const auto* b = static_cast<const T*>(right);
  auto* to = static_cast<T*>(result);
  const std::size_t values = count * reinterpret_cast<std::uintptr_t>(context);
  for (std::size_t i = 0; i < values; ++i) to[i] = Op{}(a[i], b[i]);
}

struct NamedReduction {
  std::string name;
  UserReduction::Combine function;
  std::size_t bytes;  // size of an element; 0: the reduction works on elements of any size
};

template <class T>
void add_numbers(std::vector<NamedReduction>& into, const std::string& type) {
  into.push_back({type + "_sum", &combine<T, Sum>, sizeof(T)});
  into.push_back({type + "_prod", &combine<T, Product>, sizeof(T)});
  into.push_back({type + "_min", &combine<T, Minimum>, sizeof(T)});
  into.push_back({type + "_max", &combine<T, Maximum>, sizeof(T)});
}

// All reductions, in the order of their numbers: element i has the number i + 1. A call compares the numbers of all
// ranks (UserReduction::id), so the list must be the same on all ranks.
const std::vector<NamedReduction>& all() {
  static const std::vector<NamedReduction> list = [] {
    std::vector<NamedReduction> made = {{"bit_and", &combine<std::uint8_t, BitAnd>, 0},
                                        {"bit_or", &combine<std::uint8_t, BitOr>, 0},
                                        {"bit_xor", &combine<std::uint8_t, BitXor>, 0}};
    add_numbers<std::int16_t>(made, "int16");
    add_numbers<std::uint16_t>(made, "uint16");
    return made;
  }();
  return list;
}

}  // namespace

UserReduction reduction_of(int number, DataType type) {
  if (number == 0) return {};
  if (number < 0 || static_cast<std::size_t>(number) > all().size()) {
    raise_invalid("there is no reduction of number " + std::to_string(number) + ": take one of _core.reductions");
  }
  const NamedReduction& named = all()[static_cast<std::size_t>(number) - 1];
  const std::size_t bytes = size_of(type);
  if (named.bytes != 0 && bytes != named.bytes) {
    raise_invalid(named.name + " is for elements of " + std::to_string(named.bytes) + " bytes; " +
                  std::string(to_string(type)) + " has " + std::to_string(bytes));
  }
  UserReduction reduction;
  reduction.combine = named.function;
  reduction.context = reinterpret_cast<void*>(named.bytes == 0 ? bytes : std::uintptr_t{1});
  reduction.element_bytes = bytes;
  reduction.id = static_cast<std::uint32_t>(number);
  return reduction;
}

void add_reductions(nb::module_& module) {
  nb::dict names;
  for (std::size_t i = 0; i < all().size(); ++i) names[nb::str(all()[i].name.c_str())] = i + 1;
  module.attr("reductions") = names;
}

}  // namespace tutti::python
