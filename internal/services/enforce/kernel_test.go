// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
)

// kernel does with the rules of a table what the kernel does. It knows the expressions of our rules, and no others.
type kernel struct {
	rules map[string][]nft.Rule
	sets  map[string]map[string][]byte // elements with their data
	local func(netip.Addr) bool

	next    map[string]map[string][]byte // what a transaction makes visible
	lookups int                          // before that
}

// packet is the first packet of a connection on its way.
type packet struct {
	from, to   netip.AddrPort
	proto      byte
	original   netip.AddrPort // where the client sent it
	slot       uint32         // what a rule draws, as far as it may
	most       uint32         // the most that a rule drew among
	translated bool

	masquerade bool
	remember   string // the key of an affinity map that was written
	endpoint   string
	timeout    time.Duration
}

// fate is what a chain does.
type fate int

const (
	goesOn fate = iota
	returns
	accepted
	dropped
	rejected
)

func newKernel() *kernel { return &kernel{sets: make(map[string]map[string][]byte)} }

// apply does what the steps of a change say, and fails as the kernel would.
func (k *kernel) apply(steps []services.Step) (err error) {
	note := func(e services.Element, format string, args ...any) {
		if err == nil {
			err = fmt.Errorf("%s: "+format, append([]any{e}, args...)...)
		}
	}
	for _, s := range steps {
		for _, e := range s.Remove {
			eachEncoded(nil, &e, false, func(key, _ []byte, end bool) {
				key = markEnd(key, end)
				if _, ok := k.sets[e.Name()][string(key)]; !ok {
					note(e, "to remove, is not there")
				}
				delete(k.sets[e.Name()], string(key))
			})
		}
		for _, e := range s.Add {
			eachEncoded(nil, &e, true, func(key, data []byte, end bool) {
				key = markEnd(key, end)
				if _, ok := k.sets[e.Name()][string(key)]; ok {
					note(e, "to add, is there")
				}
				if k.sets[e.Name()] == nil {
					k.sets[e.Name()] = make(map[string][]byte)
				}
				k.sets[e.Name()][string(key)] = append([]byte{}, data...)
			})
		}
	}
	return err
}

// markEnd tells the end of a range from the beginning of the next one.
func markEnd(key []byte, end bool) []byte {
	if end {
		return append(append([]byte{}, key...), 'e', 'n', 'd')
	}
	return key
}

// has returns the data of a key. In a set of ranges the nearest element at or before the key decides.
func (k *kernel) has(set string, key []byte) ([]byte, bool) {
	if k.lookups--; k.lookups < 0 && k.next != nil {
		k.sets, k.next = k.next, nil
	}
	like, _ := services.SetNamed(set)
	if !ofRanges(like.Set) || set == nft.AffinityMap(false) || set == nft.AffinityMap(true) {
		data, ok := k.sets[set][string(key)]
		return data, ok
	}
	var nearest string
	within := false
	for have := range k.sets[set] {
		at := have[:len(key)]
		if at <= string(key) && (at > nearest || nearest == "" || at == nearest && len(have) == len(key)) {
			nearest, within = at, len(have) == len(key)
		}
	}
	return nil, within
}

// walk follows a packet through a chain.
func (k *kernel) walk(chain string, p *packet) fate {
	for _, r := range k.rules[chain] {
		f := k.rule(r, p)
		if f != goesOn {
			return f
		}
	}
	return goesOn
}

// rule evaluates one rule.
func (k *kernel) rule(r nft.Rule, p *packet) fate {
	var regs registers
	for _, e := range r.Exprs {
		switch e.Name {
		case "immediate":
			return k.verdict(r, p)
		case "reject":
			return rejected
		case "masq":
			p.masquerade = true
			return accepted
		case "nat":
			p.to = netip.AddrPortFrom(netip.Addr{}, 0)
			size := map[uint32]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 16}[e.Number(unix.NFTA_NAT_FAMILY)]
			a, _ := netip.AddrFromSlice(regs.at(e.Number(unix.NFTA_NAT_REG_ADDR_MIN), size))
			p.to = netip.AddrPortFrom(a, binary.BigEndian.Uint16(regs.at(e.Number(unix.NFTA_NAT_REG_PROTO_MIN), 2)))
			p.translated = true
			return accepted
		default:
			if !k.matches(e, &regs, p) {
				return goesOn
			}
		}
	}
	return goesOn
}

func (k *kernel) verdict(r nft.Rule, p *packet) fate {
	switch code, to, _ := r.Verdict(); code {
	case 0:
		return dropped
	case unix.NFT_RETURN:
		return returns
	case unix.NFT_JUMP, unix.NFT_GOTO:
		switch f := k.walk(to, p); {
		case f != goesOn && f != returns:
			return f
		case code == unix.NFT_GOTO:
			return returns
		}
		return goesOn
	default:
		panic(fmt.Sprint("verdict ", code))
	}
}

// matches evaluates an expression that is no verdict.
func (k *kernel) matches(e nft.Expr, regs *registers, p *packet) bool {
	switch e.Name {
	case "meta":
		regs.set(e.Number(unix.NFTA_META_DREG), p.meta(e.Number(unix.NFTA_META_KEY)))
	case "payload":
		regs.set(e.Number(unix.NFTA_PAYLOAD_DREG), p.payload(e))
	case "ct":
		value := p.ct(e.Number(unix.NFTA_CT_KEY), len(e.Attr(unix.NFTA_CT_DIRECTION)) == 1 && e.Attr(unix.NFTA_CT_DIRECTION)[0] == 1)
		regs.set(e.Number(unix.NFTA_CT_DREG), value)
		return value != nil
	case "fib":
		a := p.to.Addr()
		if e.Number(unix.NFTA_FIB_FLAGS)&unix.NFTA_FIB_F_SADDR != 0 {
			a = p.from.Addr()
		}
		kind := uint32(unix.RTN_UNICAST)
		if k.local(a) {
			kind = unix.RTN_LOCAL
		}
		regs.set(e.Number(unix.NFTA_FIB_DREG), binary.NativeEndian.AppendUint32(nil, kind))
	case "numgen":
		among := e.Number(unix.NFTA_NG_MODULUS)
		p.most = max(p.most, among)
		regs.set(e.Number(unix.NFTA_NG_DREG), binary.NativeEndian.AppendUint32(nil, p.slot%among))
	case "bitwise":
		mask := e.Value(unix.NFTA_BITWISE_MASK)
		value := regs.at(e.Number(unix.NFTA_BITWISE_SREG), len(mask))
		for i := range mask {
			value[i] &= mask[i]
		}
		regs.set(e.Number(unix.NFTA_BITWISE_DREG), value)
	case "cmp":
		want := e.Value(unix.NFTA_CMP_DATA)
		same := string(regs.at(e.Number(unix.NFTA_CMP_SREG), len(want))) == string(want)
		return same == (e.Number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ)
	case "lookup":
		return k.lookup(e, regs)
	case "dynset":
		p.write(e, regs)
	default:
		panic("expression " + e.Name)
	}
	return true
}

func (k *kernel) lookup(e nft.Expr, regs *registers) bool {
	set := e.Text(unix.NFTA_LOOKUP_SET)
	data, ok := k.has(set, regs.at(e.Number(unix.NFTA_LOOKUP_SREG), keyLength(set)))
	if ok && e.Attr(unix.NFTA_LOOKUP_DREG) != nil {
		regs.set(e.Number(unix.NFTA_LOOKUP_DREG), data)
	}
	return ok == (e.Number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV == 0)
}

// keyLength returns the length of a set's keys.
func keyLength(set string) (n int) {
	if set == nft.AffinityMap(false) {
		return 4 + 4 + 8
	}
	if set == nft.AffinityMap(true) {
		return 16 + 16 + 8
	}
	like, ok := services.SetNamed(set)
	if !ok {
		panic("set " + set)
	}
	like.Frontend.Addr = unspecified(like.IPv6)
	if ofRanges(like.Set) || like.Set == services.Allowed {
		like.Range = netip.PrefixFrom(unspecified(like.IPv6), 0)
	}
	eachEncoded(nil, &like, false, func(key, _ []byte, _ bool) { n = len(key) })
	return n
}

// write remembers a client.
func (p *packet) write(e nft.Expr, regs *registers) {
	v6 := p.from.Addr().Is6()
	if set := e.Text(unix.NFTA_DYNSET_SET_NAME); set != nft.AffinityMap(v6) {
		panic("writes to " + set)
	}
	size := 8
	if v6 {
		size = 20
	}
	p.remember = string(regs.at(e.Number(unix.NFTA_DYNSET_SREG_KEY), keyLength(nft.AffinityMap(v6))))
	p.endpoint = string(regs.at(e.Number(unix.NFTA_DYNSET_SREG_DATA), size))
	p.timeout = time.Duration(binary.BigEndian.Uint64(e.Attr(unix.NFTA_DYNSET_TIMEOUT))) * time.Millisecond
}

func (p *packet) meta(key uint32) []byte {
	switch key {
	case unix.NFT_META_L4PROTO:
		return []byte{p.proto}
	case unix.NFT_META_NFPROTO:
		if p.from.Addr().Is6() {
			return []byte{unix.NFPROTO_IPV6}
		}
		return []byte{unix.NFPROTO_IPV4}
	}
	panic(fmt.Sprint("meta ", key))
}

func (p *packet) payload(e nft.Expr) []byte {
	var header []byte
	if e.Number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_TRANSPORT_HEADER {
		header = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.from.Port()), p.to.Port())
	} else {
		header = make([]byte, 12)
		if p.from.Addr().Is6() {
			header = header[:8]
		}
		header = append(append(header, p.from.Addr().AsSlice()...), p.to.Addr().AsSlice()...)
	}
	at, n := e.Number(unix.NFTA_PAYLOAD_OFFSET), e.Number(unix.NFTA_PAYLOAD_LEN)
	return header[at : at+n]
}

// ct returns a field of the connection. It is nil if the connection has none, as an address of the other family.
func (p *packet) ct(key uint32, reply bool) []byte {
	src, dst := p.from, p.original
	if reply {
		src, dst = p.to, p.from
	}
	family := func(a netip.Addr, v6 bool) []byte {
		if a.Is6() != v6 {
			return nil
		}
		return a.AsSlice()
	}
	switch key {
	case unix.NFT_CT_STATUS:
		const ipsDstNAT = 1 << 5
		return binary.NativeEndian.AppendUint32(nil, map[bool]uint32{true: ipsDstNAT}[p.translated])
	case unix.NFT_CT_PROTO_SRC:
		return binary.BigEndian.AppendUint16(nil, src.Port())
	case unix.NFT_CT_PROTO_DST:
		return binary.BigEndian.AppendUint16(nil, dst.Port())
	case 19, 21:
		return family(src.Addr(), key == 21)
	case 20, 22:
		return family(dst.Addr(), key == 22)
	}
	panic(fmt.Sprint("ct ", key))
}

// registers are those of a rule.
type registers [64]byte

func offset(reg uint32) int {
	if reg >= unix.NFT_REG32_00 {
		return int(reg-unix.NFT_REG32_00) * 4
	}
	return int(reg-unix.NFT_REG_1) * 16
}

// at returns a copy.
func (r *registers) at(reg uint32, n int) []byte {
	return append([]byte{}, r[offset(reg):offset(reg)+n]...)
}

// set writes a value, and zeros up to the next register.
func (r *registers) set(reg uint32, value []byte) {
	at := offset(reg)
	clear(r[at : at+(len(value)+3)&^3])
	copy(r[at:], value)
}

// clone copies the elements.
func (k *kernel) clone() *kernel {
	out := &kernel{rules: k.rules, local: k.local, sets: make(map[string]map[string][]byte)}
	for name, set := range k.sets {
		out.sets[name] = maps.Clone(set)
	}
	return out
}
