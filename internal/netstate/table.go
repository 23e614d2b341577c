// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Table is one of our firewall tables as a whole. If its chains and rules are missing, its
// elements have no effect. If another program added a rule, that rule may drop the traffic
// that the elements serve.
type Table struct{ Bridge bool }

func (t Table) family() nftables.TableFamily {
	if t.Bridge {
		return nftables.TableFamilyBridge
	}
	return nftables.TableFamilyINet
}

// String returns the name of the table.
func (t Table) String() string {
	if t.Bridge {
		return "host: firewall: table bridge " + nft.TableName
	}
	return "host: firewall: table inet " + nft.TableName
}

// Ensure does nothing, because the first element creates the table.
func (Table) Ensure(context.Context, *Env) (Undo, error) { return nil, nil }

// mostChanges is how many changes of a table a sentence lists.
const mostChanges = 3

// Diff lists the changes of the table. Diff skips a table that a newer program made.
func (t Table) Diff(_ context.Context, env *Env) (string, error) {
	diffs, err := env.NFT.VerifyTable(t.family())
	var newer *nft.NewerSchemaError
	if errors.As(err, &newer) {
		return "", nil
	}
	if err != nil || len(diffs) == 0 {
		return "", err
	}
	more := ""
	if n := len(diffs) - mostChanges; n > 0 {
		diffs, more = diffs[:mostChanges], fmt.Sprintf("; and %d more", n)
	}
	return strings.Join(diffs, "; ") + more + " (run patchbay repair)", nil
}

// Tables returns the tables that the state's elements use, except tables that are in the state
// already.
func (s State) Tables() (tables State) {
	var has, named [2]bool
	note := func(elems ...nft.Element) {
		for _, e := range elems {
			bridge := e.Family() == nftables.TableFamilyBridge
			has[0], has[1] = has[0] || !bridge, has[1] || bridge
		}
	}
	for _, o := range s {
		switch o := o.(type) {
		case Element:
			note(o.Element)
		case HeldFact:
			note(o.Elements...)
			has[0] = has[0] || o.Conditions != nil
		case Table:
			named[0], named[1] = named[0] || !o.Bridge, named[1] || o.Bridge
		}
	}
	for i, there := range has {
		if there && !named[i] {
			tables = append(tables, Table{Bridge: i == 1})
		}
	}
	return tables
}
