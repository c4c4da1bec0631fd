// Passes as the driver makes them: commands over one block of words, and what follows from sizes in them.
//
// A family is what passes of a kind have in common that decide alike: a script of expressions of lengths and strides,
// and a form, in which a number stands for a value of the script. It serves all lengths: a pass is a family and its
// values. `Script.registers` writes scripts and forms; `Script.function` is the same in Python, whose integers have no
// end, and which is asked where 64 bits are not enough.

#pragma once

#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <bit>

using at::Tensor;
using torch::autograd::variable_list;
using Number = int64_t;
using Numbers = std::vector<Number>;
using Three = std::array<Number, 3>;
using Few = c10::SmallVector<Number, 6>;

static constexpr Number word_bytes = 8, map_bytes = 128, aligned = 16, without_context = 201;

struct Driver {
  int (*launch)(const void*, Number, void**, void**);
  int (*fill)(uint64_t, unsigned, size_t, Number);
  int (*copy)(const void*, Number);
  int (*context)(void**, int);
  int (*enter)(void*);
  int (*describe)(
      void*, unsigned, unsigned, uint64_t, const uint64_t*, const uint64_t*, const unsigned*, const unsigned*, unsigned,
      unsigned, unsigned, unsigned);
};

struct Command {  // a launch has a function, and a fill none; begin: of a configuration, of a slot, or of a copy
  char what;
  Number begin, function;
  Numbers parameters;
};

struct Kind {  // what is alike for all lengths
  Driver by;
  std::vector<Command> commands;
  Numbers streams, inputs, types;
  std::vector<Three> alike;
  Number slots;
  at::Device device{at::kCPU};
  PyObject* kept;  // kernels, which Triton unloads when nothing holds them
};

// ---- expressions of sizes

struct Line {  // an operation on two registers, or a comparison, and whether it holds
  char what;
  size_t one, two;
  bool holds;
};

enum class Outcome { found, other, beyond };  // beyond: Python is to say

struct Script {  // registers are sizes, then what lines give, then constants
  size_t sizes;
  std::vector<Line> lines;
  Numbers constants;

  Outcome of(const Numbers& symbols, Numbers& registers) const {
    registers.assign(symbols.begin(), symbols.begin() + sizes);
    registers.resize(sizes + lines.size());
    registers.insert(registers.end(), constants.begin(), constants.end());
    Number* to = registers.data() + sizes;
    for (auto& line : lines) {
      Number a = registers[line.one], b = registers[line.two];
      bool holds = line.holds;
      switch (line.what) {
        case '+': if (__builtin_add_overflow(a, b, to)) return Outcome::beyond; break;
        case '-': if (__builtin_sub_overflow(a, b, to)) return Outcome::beyond; break;
        case '*': if (__builtin_mul_overflow(a, b, to)) return Outcome::beyond; break;
        case '/':
        case '%': {  // rounded down, as in Python
          if (!b || (b == -1 && a == INT64_MIN)) return Outcome::beyond;
          bool below = a % b && (a < 0) != (b < 0);
          *to = line.what == '/' ? a / b - below : a % b + (below ? b : 0);
          break;
        }
        case 'b': *to = std::bit_width(a < 0 ? -static_cast<uint64_t>(a) : static_cast<uint64_t>(a)); break;
        case '=': holds = a == b; break;
        case '!': holds = a != b; break;
        case '<': holds = a < b; break;
        case 'l': holds = a <= b; break;
        case '>': holds = a > b; break;
        case 'g': holds = a >= b; break;
      }
      if (holds != line.holds) return Outcome::other;
      ++to;
    }
    return Outcome::found;
  }
};

// ---- descriptors of the copy engine

struct Boxes {  // descriptors of a kind, which differ in lengths and strides
  Driver by;
  Number type, swizzle, nan;
  std::vector<unsigned> sides;

  // Write the descriptor of some lengths, and strides in bytes behind them; false where the driver refuses it.
  bool write(const Few& lengths, char* to) {
    for (auto& each : recent)
      if (each.lengths == lengths) return std::memcpy(to, each.made, map_bytes);
    auto& one = recent[next];
    next = (next + 1) % recent.size();
    one.lengths.clear();
    alignas(map_bytes) char made[map_bytes] = {};
    unsigned rank = sides.size(), ones[] = {1, 1, 1, 1, 1};
    auto* sizes = reinterpret_cast<const uint64_t*>(lengths.data());
    if (by.describe(made, type, rank, anywhere, sizes, sizes + rank, sides.data(), ones, 0, swizzle, l2_128b, nan))
      return false;
    one.lengths = lengths;
    std::memcpy(one.made, made, map_bytes);
    return std::memcpy(to, made, map_bytes);
  }

  static constexpr uint64_t anywhere = 1ull << 32;
  static constexpr unsigned l2_128b = 2;

 private:
  struct One {
    c10::SmallVector<Number, 10> lengths;
    char made[map_bytes];
  };
  std::array<One, 8> recent;  // both passes of a call have some in common
  size_t next = 0;
};

// ---- families and passes

struct Memory {
  Number slot;
  Numbers sizes, strides;
};

struct View {
  Number slot, offset;
  bool there, whole;
  Numbers sizes, strides;
};

struct Laid {  // how a tensor lies in memory, if it is there
  Few sizes, strides;
  bool there = true;

  static Laid of(const Tensor& x) { return x.defined() ? Laid{Few(x.sizes()), Few(x.strides())} : Laid{{}, {}, false}; }
};

struct Form {  // of a pass, with the numbers of values
  Numbers words;
  std::vector<Numbers> boxes;  // lengths of descriptors, and behind them strides in bytes
  std::vector<Three> places, fills, begins;
  std::vector<Memory> memory;
  Numbers rooms;
  std::vector<View> views;

  // All numbers in it.
  template <class F>
  void each(F f) {
    auto all = [&](Numbers& several) { for (auto& at : several) f(at); };
    all(words), all(rooms);
    for (auto& one : boxes) all(one);
    for (auto* several : {&places, &fills, &begins})
      for (auto& three : *several) for (auto& at : three) f(at);
    for (auto& one : memory) f(one.slot), all(one.sizes), all(one.strides);
    for (auto& one : views) if (one.there) f(one.slot), f(one.offset), all(one.sizes), all(one.strides);
  }
};

struct Family {
  std::shared_ptr<Kind> kind;
  std::vector<Numbers> axes;  // whose lengths are symbols, by the number of axes
  Script script;
  Form form;
  Numbers values;  // their registers
  std::vector<std::shared_ptr<Boxes>> boxes;

  // Let the form have values, of which each is one register.
  void close() {
    std::vector<Number> at(script.sizes + script.lines.size() + script.constants.size(), -1);
    form.each([&](Number& each) {
      if (at[each] < 0) at[each] = values.size(), values.push_back(each);
      each = at[each];
    });
  }

  // The symbols of a pass, in the order of `Shadow.of`.
  void symbols(const std::vector<Laid>& inputs, Numbers& found) const {
    found.clear();
    for (auto& [sizes, strides, there] : inputs) {
      if (there && sizes.size() < axes.size())
        for (auto at : axes[sizes.size()]) found.push_back(sizes[at]);
      found.insert(found.end(), strides.begin(), strides.end() - !strides.empty());
    }
  }
};

struct Pass {
  std::shared_ptr<Family> family;
  Numbers values;
  std::string maps;  // descriptors

  Few few(const Numbers& several) const {
    Few found;
    for (auto at : several) found.push_back(values[at]);
    return found;
  }

  // How a result lies in memory.
  Laid result(size_t at) const {
    auto& view = family->form.views[at];
    if (!view.there) return Laid{{}, {}, false};
    for (auto& one : family->form.memory)
      if (view.whole && values[one.slot] == values[view.slot]) return Laid{few(one.sizes), few(one.strides)};
    return Laid{few(view.sizes), few(view.strides)};
  }
};

// The pass of a family for symbols, which may be more than it has: passes of given sizes have none.
inline Outcome find(const std::shared_ptr<Family>& family, const Numbers& symbols, std::shared_ptr<Pass>& made) {
  static thread_local Numbers registers;
  if (family->script.sizes > symbols.size()) return Outcome::beyond;
  if (auto found = family->script.of(symbols, registers); found != Outcome::found) return found;
  made = std::make_shared<Pass>();
  made->family = family;
  made->values.reserve(family->values.size());
  for (auto at : family->values) made->values.push_back(registers[at]);
  made->maps.resize(family->boxes.size() * map_bytes);
  for (size_t at = 0; at < family->boxes.size(); ++at)
    if (!family->boxes[at]->write(made->few(family->form.boxes[at]), made->maps.data() + at * map_bytes)) return Outcome::beyond;
  return Outcome::found;
}

// The pass of the first of several families that decide as it does, and the number of that one.
inline Outcome find(const std::vector<std::shared_ptr<Family>>& families, const std::vector<Laid>& inputs, std::shared_ptr<Pass>& made, size_t& which) {
  static thread_local Numbers symbols;
  for (which = 0; which < families.size(); ++which) {
    if (!which) families[0]->symbols(inputs, symbols);
    auto found = find(families[which], symbols, made);
    if (found != Outcome::other) return found;
  }
  return Outcome::other;
}

// ---- a pass

inline void retry(const Driver& by, int refused, const std::function<int()>& command, const at::Device& device) {
  void* context = nullptr;
  if (refused == without_context && !by.context(&context, device.index()) && !by.enter(context)) refused = command();
  TORCH_CHECK(!refused, "the driver of the card refuses a launch, with its error ", refused, ".");
}

inline void give(const Pass& pass, const Numbers& places, Number stream) {
  const Kind& kind = *pass.family->kind;
  const Form& form = pass.family->form;
  auto& values = pass.values;
  std::vector<char> room(pass.maps.size() + form.words.size() * word_bytes + map_bytes);
  char* begin = room.data() + (-reinterpret_cast<uintptr_t>(room.data())) % map_bytes;
  std::memcpy(begin, pass.maps.data(), pass.maps.size());
  auto *numbers = reinterpret_cast<Number*>(begin), *to = numbers + pass.maps.size() / word_bytes;
  for (auto at : form.words) *to++ = values[at];
  for (auto& each : form.places) numbers[values[each[0]]] = places[values[each[1]]] + values[each[2]];
  for (auto at : kind.streams) numbers[at] = stream;
  std::vector<void*> parameters;
  auto fill = form.fills.begin();
  for (auto& each : kind.commands) {
    parameters.clear();
    for (auto at : each.parameters) parameters.push_back(begin + at);
    auto command = [&]() {
      if (each.what == 'l') return kind.by.launch(begin + each.begin, each.function, parameters.data(), nullptr);
      if (each.what == 'c') return kind.by.copy(begin + each.begin, stream);
      auto& [slot, offset, words] = *fill;
      return kind.by.fill(places[values[slot]] + values[offset], 0, values[words], stream);
    };
    if (int refused = command()) retry(kind.by, refused, command, kind.device);
    if (each.what == 'f') ++fill;
  }
}

// Make a pass; false if inputs are at other multiples of bytes, or other ones begin at one address.
inline bool make(const Pass& pass, variable_list tensors, Number stream, variable_list& results) {
  const Kind& kind = *pass.family->kind;
  const Form& form = pass.family->form;
  auto& values = pass.values;
  Numbers places(kind.slots);
  Number together = 0;
  for (auto slot : kind.inputs) together |= places[slot] = reinterpret_cast<Number>(tensors[slot].data_ptr());
  if (together % aligned) return false;
  for (auto& each : kind.alike)
    if ((places[each[0]] == places[each[1]]) != each[2]) return false;
  at::AutoDispatchBelowADInplaceOrView below;
  auto options = at::TensorOptions().device(kind.device);
  tensors.resize(kind.slots);
  size_t number = 0;
  for (auto& each : form.memory) {
    auto type = static_cast<at::ScalarType>(kind.types[number++]);
    auto& one = tensors[values[each.slot]] = at::empty_strided(pass.few(each.sizes), pass.few(each.strides), options.dtype(type));
    places[values[each.slot]] = reinterpret_cast<Number>(one.data_ptr());
  }
  variable_list rooms;
  for (auto words : form.rooms) rooms.push_back(at::empty_strided({values[words]}, {1}, options.dtype(at::kFloat)));
  for (auto& [slot, room, offset] : form.begins)
    places[values[slot]] = reinterpret_cast<Number>(rooms[values[room]].data_ptr()) + values[offset];
  give(pass, places, stream);
  for (auto& each : form.views) {
    if (!each.there) { results.emplace_back(); continue; }
    auto& one = tensors[values[each.slot]];
    results.push_back(each.whole ? one : one.as_strided(pass.few(each.sizes), pass.few(each.strides), one.storage_offset() + values[each.offset]));
  }
  return true;
}
