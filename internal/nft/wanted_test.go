// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ruleExprs returns the expressions of every rule that Verify compares, and others that wanted leaves
// to the library.
func ruleExprs() (all []expr.Any) {
	for _, f := range families() {
		for _, c := range layoutOf(f).chains {
			for _, r := range c.rules {
				all = append(all, r.exprs...)
			}
		}
	}
	for _, s := range setSpecs {
		if !s.onDemand {
			continue
		}
		for _, r := range s.rules() {
			all = append(all, r...)
		}
	}
	prefix := MatchPrefix(netip.MustParsePrefix("fd00::/61"), true, expr.CmpOpNeq)
	return append(append(all, prefix...), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg1, Len: 4}, &expr.Lookup{SourceRegister: reg1, SetName: "x", Invert: true},
		&expr.Range{Op: expr.CmpOpNeq, Register: reg1, FromData: []byte{0, 22}, ToData: []byte{0, 22}},
		&expr.Counter{}, &expr.FlowOffload{Name: flowtableName})
}

// marshalled returns an expression as the library encodes it.
func marshalled(t *testing.T, e expr.Any) Expr {
	t.Helper()
	b, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
	if err != nil {
		t.Fatal(err)
	}
	x, err := decodeExpr(b)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// wanted encodes each expression as the library does.
func TestWantedIsWhatTheLibraryWrites(t *testing.T) {
	for _, e := range ruleExprs() {
		var w wanted
		if err := w.add(byte(nftables.TableFamilyINet), e); err != nil {
			t.Fatal(err)
		}
		got, want := w.exprs[0], marshalled(t, e)
		if got.String() != want.String() || len(got.Attrs) != len(want.Attrs) {
			t.Errorf("%T: %s, the library writes %s", e, got, want)
		}
		for _, a := range want.Attrs {
			if !got.sameAttr(a.Type, a.Data) {
				t.Errorf("%T: attribute %d is %x, the library writes %x", e, a.Type, got.Attr(a.Type), a.Data)
			}
		}
	}
}

// Two rules differ if an attribute is missing, has another value, or is additional.
func TestOtherAttributeIsAnotherRule(t *testing.T) {
	for _, e := range ruleExprs() {
		kernels := func() []Expr { return []Expr{kernelForm(marshalled(t, e))} }
		if !sameRule(byte(nftables.TableFamilyINet), kernels(), []expr.Any{e}) {
			t.Fatalf("%s is not the same rule as itself", kernels())
		}
		n := len(kernels()[0].Attrs)
		for i := range n {
			if kernels()[0].free(kernels()[0].Attrs[i].Type) {
				continue
			}
			for at := range kernels()[0].Attrs[i].Data {
				have := kernels()
				if padding(have[0].Attrs[i].Data, at) {
					continue
				}
				have[0].Attrs[i].Data[at] ^= 0x15
				if sameRule(byte(nftables.TableFamilyINet), have, []expr.Any{e}) {
					t.Errorf("%s is taken for %s", have, kernels())
				}
			}
			have := kernels()
			have[0].Attrs = append(have[0].Attrs[:i:i], have[0].Attrs[i+1:]...)
			if sameRule(byte(nftables.TableFamilyINet), have, []expr.Any{e}) {
				t.Errorf("%s is taken for %s", have, kernels())
			}
		}
		have := kernels()
		have[0].Attrs = append(have[0].Attrs, Attrs{{Type: 99, Data: []byte{0, 1}}}...)
		if sameRule(byte(nftables.TableFamilyINet), have, []expr.Any{e}) {
			t.Errorf("%s is taken for %s", have, kernels())
		}
	}
}

// The bytes of an address may look like an attribute whose type has a flag.
func TestAddressLikeAnAttribute(t *testing.T) {
	cmp := func(last byte) *expr.Cmp {
		return &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{4, 0, 1, last}}
	}
	have := []Expr{kernelForm(marshalled(t, cmp(128)))}
	if sameRule(byte(nftables.TableFamilyINet), have, []expr.Any{cmp(0)}) {
		t.Errorf("%s is taken for 4.0.1.0", have)
	}
}

// kernelForm returns an expression that we write as the kernel stores it.
func kernelForm(e Expr) Expr {
	out := Expr{Name: e.Name}
	for _, a := range e.Attrs {
		a.Data = bytes.Clone(e.stored(a))
		out.Attrs = append(out.Attrs, a)
	}
	return out
}

// padding reports whether a byte of nested data, or of a verdict, lies behind the end of a value. Nobody
// reads such a byte. The flag for nested data lies in the second byte of a type.
func padding(b []byte, at int) bool {
	in, err := attributes(b)
	if err != nil || len(in) == 0 || at < unix.SizeofNlAttr {
		return false
	}
	if inner, err := attributes(in[0].Data); err == nil && len(inner) == 2 { // the code and the chain of a verdict
		return at >= 12+int(inner[1].Length)
	}
	return at >= int(in[0].Length)
}

// A second VerifyTable of the same ruleset costs one request. After any change, the table is read again.
func TestVerifyAgain(t *testing.T) {
	c := open(t)
	c.Add(attachment()...)
	commit(t, c)
	verify := func() ([]string, uint32) {
		before := c.nl.seq
		diffs, err := c.VerifyTable(nftables.TableFamilyINet)
		if err != nil {
			t.Fatal(err)
		}
		return diffs, c.nl.seq - before
	}
	if diffs, n := verify(); len(diffs) != 0 || n < 5 {
		t.Errorf("first look: %q, %d requests", diffs, n)
	}
	if diffs, n := verify(); len(diffs) != 0 || n != 1 {
		t.Errorf("second look: %q, %d requests", diffs, n)
	}
	for _, damage := range damages[:len(damages)-1] {
		nftTool(t, "flush ruleset")
		c.Add(attachment()...)
		c.Add(network()...)
		c.Add(Internal("cni2", "pods")...)
		commit(t, c)
		if diffs, n := verify(); len(diffs) != 0 || n == 1 {
			t.Errorf("before %s: %q, %d requests", damage.name, diffs, n)
		}
		nftTool(t, damage.command)
		for want := range 2 {
			if diffs, n := verify(); len(diffs) == 0 || (n == 1) != (want == 1) {
				t.Errorf("%s, look %d: %q, %d requests", damage.name, want+1, diffs, n)
			}
		}
	}
}
