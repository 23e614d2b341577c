// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// nft loads some of our comparisons in another form. It has the same meaning only behind the expressions that it is for.
func TestFormsOfNFT(t *testing.T) {
	fib := func(present bool) *expr.Fib {
		return &expr.Fib{Register: reg1, FlagSADDR: true, FlagIIF: true, FlagPRESENT: present, ResultOIF: true}
	}
	is := func(op expr.CmpOp, register uint32, data ...byte) *expr.Cmp {
		return &expr.Cmp{Op: op, Register: register, Data: data}
	}
	ports := func(op expr.CmpOp, from, to byte) *expr.Range {
		return &expr.Range{Op: op, Register: reg1, FromData: []byte{0, from}, ToData: []byte{0, to}}
	}
	load := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	from := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Len: 2}
	both := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Len: 4}
	ip := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 2, Len: 2}
	short := loadAddr(false, true, reg1)
	short.Len = 2
	eth0 := metaIs(expr.MetaKeyIIFNAME, expr.CmpOpEq, IfName("eth0"))
	const eq, neq = expr.CmpOpEq, expr.CmpOpNeq
	for _, c := range []struct {
		name       string
		ours, nfts match
		same       bool
	}{
		{"no route", match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, match{fib(true), is(eq, reg1, 0)}, true},
		{"a route", match{fib(true), is(eq, reg1, 1, 0, 0, 0)}, match{fib(true), is(eq, reg1, 1)}, true},
		{"no route, and a verdict", rule(match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, verdict(expr.VerdictDrop)), rule(match{fib(true), is(eq, reg1, 0)}, verdict(expr.VerdictDrop)), true},
		{"a route instead of none", match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, match{fib(true), is(eq, reg1, 1)}, false},
		{"the contrary", match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, match{fib(true), is(neq, reg1, 0)}, false},
		{"another register", match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, match{fib(true), is(eq, reg1+1, 0)}, false},
		{"two bytes", match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, match{fib(true), is(eq, reg1, 0, 0)}, false},
		{"the number of a link", match{fib(false), is(eq, reg1, 0, 0, 0, 0)}, match{fib(false), is(eq, reg1, 0)}, false},
		{"a mark", match{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, is(eq, reg1, 0, 0, 0, 0)}, match{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, is(eq, reg1, 0)}, false},
		{"another lookup", match{fib(true), is(eq, reg1, 0, 0, 0, 0)}, match{fib(false), is(eq, reg1, 0)}, false},

		{"the other addresses", match{loadAddr(false, true, reg1), bitwise(reg1, []byte{255, 255, 0, 0}), is(neq, reg1, 10, 1, 0, 0)}, match{short, is(neq, reg1, 10, 1)}, true},
		{"addresses", match{loadAddr(false, true, reg1), bitwise(reg1, []byte{255, 255, 0, 0}), is(eq, reg1, 10, 1, 0, 0)}, match{short, is(eq, reg1, 10, 1)}, true},
		{"addresses instead of the others", match{loadAddr(false, true, reg1), bitwise(reg1, []byte{255, 255, 0, 0}), is(neq, reg1, 10, 1, 0, 0)}, match{short, is(eq, reg1, 10, 1)}, false},
		{"smaller addresses", match{loadAddr(false, true, reg1), bitwise(reg1, []byte{255, 255, 0, 0}), is(expr.CmpOpLt, reg1, 10, 1, 0, 0)}, match{short, is(expr.CmpOpLt, reg1, 10, 1)}, false},

		{"ports", match{load, ports(eq, 22, 25)}, match{load, is(expr.CmpOpGte, reg1, 0, 22), is(expr.CmpOpLte, reg1, 0, 25)}, true},
		{"ports from one to the same", match{load, ports(eq, 22, 22)}, match{load, is(expr.CmpOpGte, reg1, 0, 22), is(expr.CmpOpLte, reg1, 0, 22)}, true},
		{"more ports", match{load, ports(eq, 22, 25)}, match{load, is(expr.CmpOpGte, reg1, 0, 22), is(expr.CmpOpLte, reg1, 0, 26)}, false},
		{"no ports", match{load, ports(neq, 22, 25)}, match{load, is(expr.CmpOpGte, reg1, 0, 22), is(expr.CmpOpLte, reg1, 0, 25)}, false},
		{"ports between", match{load, ports(eq, 22, 25)}, match{load, is(expr.CmpOpGt, reg1, 0, 22), is(expr.CmpOpLte, reg1, 0, 25)}, false},
		{"registers", match{load, ports(eq, 22, 25)}, match{load, is(expr.CmpOpGte, reg1, 0, 22), is(expr.CmpOpLte, reg1+1, 0, 25)}, false},

		{"both ports", match{from, is(eq, reg1, 0, 53), load, is(eq, reg1, 0, 7)}, match{both, is(eq, reg1, 0, 53, 0, 7)}, true},
		{"both ports the other way", match{from, is(eq, reg1, 0, 53), load, is(eq, reg1, 0, 7)}, match{both, is(eq, reg1, 0, 7, 0, 53)}, false},
		{"not both ports", match{from, is(neq, reg1, 0, 53), load, is(neq, reg1, 0, 7)}, match{both, is(neq, reg1, 0, 53, 0, 7)}, false},
		{"ports in another order", match{load, is(eq, reg1, 0, 53), from, is(eq, reg1, 0, 7)}, match{both, is(eq, reg1, 0, 53, 0, 7)}, false},
		{"a port and bytes of another header", match{from, is(eq, reg1, 0, 53), ip, is(eq, reg1, 0, 7)}, match{both, is(eq, reg1, 0, 53, 0, 7)}, false},

		{"family", rule(family(false), eth0, match{short}), rule(eth0, family(false), match{short}), true},
		{"the other family", rule(family(false), eth0, match{short}), rule(eth0, family(true), match{short}), false},
		{"family behind a verdict", rule(family(false), verdict(expr.VerdictDrop), match{short}), rule(verdict(expr.VerdictDrop), family(false), match{short}), false},
		{"family behind a counter", rule(family(false), match{&expr.Counter{}, short}), rule(match{&expr.Counter{}}, family(false), match{short}), false},
		{"family in the register", rule(family(false), eth0, match{is(eq, reg1, 2), short}), rule(eth0, family(false), match{is(eq, reg1, 2), short}), false},
		{"family instead of a name", rule(family(false), match{eth0[0], eth0[1], short}), rule(match{eth0[0]}, family(false), match{eth0[1], short}), false},

		{"no port", match{load, ports(neq, 22, 22)}, match{load, is(neq, reg1, 0, 22)}, true},
		{"a port", match{load, ports(eq, 22, 22)}, match{load, is(eq, reg1, 0, 22)}, true},
		{"another port", match{load, ports(neq, 22, 22)}, match{load, is(neq, reg1, 0, 23)}, false},
		{"the port instead of all others", match{load, ports(neq, 22, 22)}, match{load, is(eq, reg1, 0, 22)}, false},
		{"the first of two ports", match{load, ports(neq, 22, 23)}, match{load, is(neq, reg1, 0, 22)}, false},
	} {
		for _, form := range []struct {
			have match
			same bool
		}{{c.nfts, c.same}, {c.ours, true}} {
			var have []Expr
			for _, e := range form.have {
				have = append(have, kernelForm(marshalled(t, e)))
			}
			if got := sameRule(byte(nftables.TableFamilyINet), have, c.ours); got != form.same {
				t.Errorf("%s: %s is our rule: %v", c.name, have, got)
			}
		}
	}
}
