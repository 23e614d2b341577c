// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Priorities of the base chains. They come after the chain of isolation (filter), and the pod that
// sends is judged first.
const (
	prioEgress  = 5
	prioIngress = 6
)

// perMessage returns how many elements one message may have: it has at most 64 KiB, and the name of a
// pod and of its chain take up to 250 bytes.
func perMessage(set string) int {
	if isDispatch(set) {
		return 150
	}
	return 400
}

// addChain makes a chain with its rules. If another program has made a chain with this name, it is
// emptied first.
func addChain(name string, lines []line) step {
	return step{"add chain " + name, 2 + len(lines), func(enc *nftables.Conn) error {
		chain := newChain(name)
		enc.AddChain(chain)
		enc.FlushChain(chain)
		addRules(enc, name, lines)
		return nil
	}}
}

// replaceChain replaces the rules of a chain. A base chain differs only if another program changed
// it; then its hook may be wrong, too.
func replaceChain(name string, lines []line) step {
	return step{"replace the rules of chain " + name, 3 + len(lines), func(enc *nftables.Conn) error {
		chain := newChain(name)
		enc.FlushChain(chain)
		if isBase(name) {
			enc.DelChain(chain)
			enc.AddChain(chain)
		}
		addRules(enc, name, lines)
		return nil
	}}
}

func addRules(enc *nftables.Conn, name string, lines []line) {
	for _, l := range lines {
		enc.AddRule(l.rule(name))
	}
}

// deleteChain removes a chain. The kernel removes its rules.
func deleteChain(name string) step {
	return step{"delete chain " + name, 2, func(enc *nftables.Conn) error {
		chain := &nftables.Chain{Name: name, Table: table()}
		enc.FlushChain(chain)
		enc.DelChain(chain)
		return nil
	}}
}

func newChain(name string) *nftables.Chain {
	chain := &nftables.Chain{Name: name, Table: table()}
	if !isBase(name) {
		return chain
	}
	accept := nftables.ChainPolicyAccept
	chain.Type, chain.Policy = nftables.ChainTypeFilter, &accept
	chain.Hooknum, chain.Priority = nftables.ChainHookForward, nftables.ChainPriorityRef(prioEgress)
	switch name {
	case chainIngress:
		chain.Priority = nftables.ChainPriorityRef(prioIngress)
	case chainInput:
		chain.Hooknum = nftables.ChainHookInput
	}
	return chain
}

func counter(name string) *nftables.CounterObj {
	return &nftables.CounterObj{Table: table(), Name: name}
}

func addCounter(name string) step {
	return step{"add counter " + name, 1, func(enc *nftables.Conn) error {
		enc.AddObj(counter(name))
		return nil
	}}
}

func deleteCounter(name string) step {
	return step{"delete counter " + name, 1, func(enc *nftables.Conn) error {
		enc.DeleteObject(counter(name))
		return nil
	}}
}

// markBase says that the base chains are complete, after they had another version or none.
func markBase(was uint16) step {
	return step{"mark the base chains as complete", 2, func(enc *nftables.Conn) error {
		set, _ := nft.PolicyRevision(0)
		if was > 0 {
			if err := enc.SetDeleteElements(set, []nftables.SetElement{nft.PolicyBase(was)}); err != nil {
				return err
			}
		}
		return enc.SetAddElements(set, []nftables.SetElement{nft.PolicyBase(baseVersion)})
	}}
}

// setOf returns a set in the library's type. Its kind is in its name.
func setOf(name string) *nftables.Set {
	if s := nft.LearnedSet(name); s != nil {
		return s
	}
	s := &nftables.Set{Table: table(), Name: name, KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian, Interval: isNets(name), HasTimeout: ofADDs(name)}
	switch {
	case isPorts(name):
		s.KeyType, s.Interval = nftables.TypeInetService, true
	case isV6(name):
		s.KeyType = nftables.TypeIP6Addr
	}
	if isDispatch(name) {
		s.IsMap, s.DataType = true, nftables.TypeVerdict
	}
	return s
}

// called returns a set's name and what it is for.
func (w *wanted) called(set string) string {
	if title := w.titles[set]; title != "" {
		return set + " (" + title + ")"
	}
	return set
}

func (w *wanted) addSet(name string) step {
	return step{"add set " + w.called(name), 1, func(enc *nftables.Conn) error {
		s := setOf(name)
		s.Comment = nft.CleanComment(w.titles[name])
		if err := enc.AddSet(s, nil); err != nil {
			return fmt.Errorf("add set %s: %w", name, err)
		}
		return nil
	}}
}

// addFilled makes a set with its elements. The step does not hold the elements: all sets together may
// have far more than the program has addresses.
func (w *wanted) addFilled(name string) (step, error) {
	list, err := w.elements(name)
	return step{"add set " + w.called(name), 1 + len(list)/perMessage(name), func(enc *nftables.Conn) error {
		list, err := w.elements(name)
		errs := []error{err, w.addSet(name).do(enc)}
		for _, s := range w.addElements(name, list) {
			errs = append(errs, s.do(enc))
		}
		return errors.Join(errs...)
	}}, err
}

func deleteSet(name string) step {
	return step{"delete set " + name, 1, func(enc *nftables.Conn) error {
		enc.DelSet(setOf(name))
		return nil
	}}
}

func removeElements(set string, elements []element) (steps []step) {
	for part := range slices.Chunk(elements, perMessage(set)) {
		what := "remove " + count(part) + " from " + set
		steps = append(steps, step{what, 1, func(enc *nftables.Conn) error {
			return enc.SetDeleteElements(setOf(set), encoded(set, part, nil))
		}})
	}
	return steps
}

func (w *wanted) addElements(set string, added []element) (steps []step) {
	for part := range slices.Chunk(added, perMessage(set)) {
		what := "add " + count(part) + " to " + w.called(set)
		steps = append(steps, step{what, 1, func(enc *nftables.Conn) error {
			return enc.SetAddElements(setOf(set), encoded(set, part, w.pods))
		}})
	}
	return steps
}

func count(list []element) string {
	if len(list) == 1 {
		return "1 element"
	}
	return fmt.Sprint(len(list), " elements")
}

// encoded returns elements in the library's type. A range is two elements: its first address or port,
// and the first one after it. A range up to the highest one has no second element.
func encoded(set string, list []element, names map[netip.Addr]string) (out []nftables.SetElement) {
	interval := setOf(set).Interval
	for _, e := range list {
		key, next := e.span()
		one := nftables.SetElement{Key: key}
		if isDispatch(set) {
			one.VerdictData, one.Comment = e.verdict(), nft.CleanComment(names[e.first])
		}
		out = append(out, one)
		if interval && next != nil {
			out = append(out, nftables.SetElement{Key: next, IntervalEnd: true})
		}
	}
	return out
}
