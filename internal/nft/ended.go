// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// A policy that denies a flow ends it: package internal/policy/enforce deletes its conntrack entry. Only TCP says in a
// packet that it is an answer. In other protocols the next answer would begin a new flow in the other direction, which
// policies may allow, and what they deny would pass as its answers. So the sets below have the answers of ended flows for
// a while, and the pod's rules ask them for the first packet of a flow. A packet that is found is dropped, and keeps its
// element: the flow has ended when both ends are silent.
//
//	set policy_ended4, policy_ended6                  source . destination . protocol . source port
//	set policy_endednoport4, policy_endednoport6      source . destination . protocol, if it has no ports
//
// The port of the end that began the flow is no part of the key: no policy looks at it. So a pod that uses many ports
// needs one element, and cannot fill a set.

// endedFor is how long an element stays after the last packet. Conntrack keeps a UDP flow for at most three minutes, too
// (nf_conntrack_udp_timeout_stream is 120 s, and 180 s in older kernels).
const endedFor = 3 * time.Minute

// These are the sizes of the sets. A pod of 8,192 clients needs a set of this size if all are denied at once. The kernel
// allocates 16 bytes for each element when it makes a set.
const (
	mostEnded       = 1 << 13
	mostEndedNoPort = 1 << 10
)

// Answer is what the end that answers sends in a flow that ended. Port is its own; a protocol without ports has 0.
type Answer struct {
	From, To netip.Addr
	Protocol l4.Protocol
	Port     uint16
}

// These are the sets, by noPort and by v6.
var endedSets = [2][2]string{{"policy_ended4", "policy_ended6"}, {"policy_endednoport4", "policy_endednoport6"}}

// EndedSets returns the names of the sets.
func EndedSets() []string { return slices.Concat(endedSets[0][:], endedSets[1][:]) }

// endedSpecs returns the sets. They are not in setSpecs, because no element of theirs is an attachment's or a network's.
func endedSpecs() (list []setSpec) {
	for v6, addr := range []field{fieldIPv4, fieldIPv6} {
		list = append(list,
			endedSpec(endedSets[0][v6], mostEnded, addr, addr, fieldProto, fieldPort),
			endedSpec(endedSets[1][v6], mostEndedNoPort, addr, addr, fieldProto))
	}
	return list
}

func endedSpec(name string, most uint32, key ...field) setSpec {
	return setSpec{name: name, family: nftables.TableFamilyINet, level: ofPolicy, key: key, learned: true, most: most, keep: endedFor}
}

// Ended returns the rule that drops the answers in one of the sets, by a goto to a chain that drops. The element stays
// as long as such packets come.
func Ended(set, drops string) []expr.Any {
	v6 := slices.Contains([]string{endedSets[0][1], endedSets[1][1]}, set)
	key := rule(addrs(v6), match{loadMeta(expr.MetaKeyL4PROTO, reg32(2*words(v6)))})
	of := family(v6)
	if slices.Contains(endedSets[0][:], set) {
		key = append(key, &expr.Payload{DestRegister: reg32(2*words(v6) + 1), Base: expr.PayloadBaseTransportHeader, Len: 2})
	} else { // nearly all first packets that are not TCP are UDP
		of = append(of, metaIs(expr.MetaKeyL4PROTO, expr.CmpOpNeq, []byte{unix.IPPROTO_UDP})...)
	}
	refresh := &expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE}
	return rule(of, key, match{inSet(set, false)}, key, match{refresh}, goTo(drops))
}

// set names the set of an answer.
func (a Answer) set() string { return endedSets[bit(!a.Protocol.HasPorts())][bit(a.From.Is6())] }

func (a Answer) key() []byte {
	key := append(slices.Concat(a.From.AsSlice(), a.To.AsSlice()), byte(a.Protocol), 0, 0, 0)
	if a.Protocol.HasPorts() {
		key = append(key, portField(a.Port)...)
	}
	return key
}

// answerOf reads the key of an element.
func (s setSpec) answerOf(key []byte) (a Answer, ok bool) {
	if len(key) != concatLen(s.key) {
		return a, false
	}
	size := s.key[0].size()
	a.From, _ = netip.AddrFromSlice(key[:size])
	a.To, _ = netip.AddrFromSlice(key[size : 2*size])
	a.Protocol = l4.Protocol(key[2*size])
	if a.Protocol.HasPorts() && len(s.key) == 4 {
		a.Port = binary.BigEndian.Uint16(key[2*size+4:])
	}
	return a, true
}

// ReadEnded returns the answers that the sets have. While packets change a set, some may be missing.
func (c *Conn) ReadEnded() (list []Answer, err error) {
	for _, s := range endedSpecs() {
		msgs, err := c.dump(s.element(nil))
		if err != nil {
			return nil, err
		}
		all, err := decodeAll(msgs)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if a, ok := s.answerOf(e.Key); ok {
				list = append(list, a)
			}
		}
	}
	return list, nil
}

// Ending is the work that adds answers to the sets, and removes those that are over.
type Ending struct {
	added  []Answer
	over   func(Answer) bool
	noRoom map[Answer]bool
}

// EndAnswers returns this work. It adds each answer once. If the table has no such sets, there is no policy, and nothing to do.
func EndAnswers(added []Answer, over func(Answer) bool) *Ending {
	return &Ending{added: added, over: over}
}

// NoRoom returns the answers for which a set had no room.
func (x *Ending) NoRoom() map[Answer]bool { return x.noRoom }

// String describes the work in errors.
func (x *Ending) String() string { return "drop the answers in flows that network policies ended" }

// Needs reports that a missing table stays missing.
func (x *Ending) Needs() bool { return false }

// Light reports that the work changes only elements.
func (x *Ending) Light() bool { return true }

// Plan compares the sets. An element that expires before the transaction makes the kernel refuse it, and Commit plans again.
func (x *Ending) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	room := make(map[string]int)
	specs := endedSpecs()
	what := make([]query, len(specs))
	for i, s := range specs {
		what[i] = s.query()
	}
	if err := c.ask(what, func(i int, _ []netlink.Message) error { room[specs[i].name] = int(specs[i].most); return nil }); err != nil {
		return nil, err
	}
	have, err := c.ReadEnded()
	if err != nil {
		return nil, err
	}
	add, remove := x.compare(have, room)
	if len(add)+len(remove) == 0 {
		return nil, nil
	}
	return func(enc *nftables.Conn) error {
		return errors.Join(answersIn(remove, enc.SetDeleteElements), answersIn(add, enc.SetAddElements))
	}, nil
}

// compare returns the answers to add and to remove, and notes those that do not fit. room has the sizes of the sets that exist.
func (x *Ending) compare(have []Answer, room map[string]int) (add, remove []Answer) {
	known := make(map[Answer]bool)
	for _, a := range have {
		if x.over(a) {
			remove = append(remove, a)
			continue
		}
		known[a] = true
		room[a.set()]--
	}
	x.noRoom = make(map[Answer]bool)
	for _, a := range x.added {
		left, exists := room[a.set()]
		switch {
		case known[a] || !exists:
		case left <= 0:
			x.noRoom[a] = true
		default:
			known[a] = true
			room[a.set()]--
			add = append(add, a)
		}
	}
	return add, remove
}

// answersIn calls do for the answers of each set, with as many as fit into a message.
func answersIn(list []Answer, do func(*nftables.Set, []nftables.SetElement) error) (err error) {
	const perMessage = 400
	for _, s := range endedSpecs() {
		var elems []nftables.SetElement
		for _, a := range list {
			if a.set() == s.name {
				elems = append(elems, nftables.SetElement{Key: a.key()})
			}
		}
		for part := range slices.Chunk(elems, perMessage) {
			err = errors.Join(err, do(s.set(), part))
		}
	}
	return err
}
