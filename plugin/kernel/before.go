// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
)

// AsAttached returns the state that CHECK expects of an attachment from before schema 2 of
// the firewall: the elements of the shared facts whose names begin with prefix, instead of
// the newer elements of its own.
func (k *Kernel) AsAttached(rec *record.Record, s netstate.State, prefix string, newer func(nft.Element) bool) netstate.State {
	var before netstate.State
	for _, name := range rec.Shared {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		fact, err := k.Records.Fact(name)
		if err != nil {
			continue
		}
		for _, e := range fact.Elements {
			before = append(before, netstate.Element{Element: e})
		}
	}
	if len(before) == 0 {
		return s
	}
	s = slices.DeleteFunc(s, func(o netstate.Object) bool {
		e, ok := o.(netstate.Element)
		return ok && newer(e.Element)
	})
	return append(s, before...)
}
