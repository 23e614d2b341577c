// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import "fmt"

// Status reports whether this program could change our tables, and whether what is in them
// works: the kernel has nftables, the caller has CAP_NET_ADMIN, no newer program made a
// table (*NewerSchemaError), and no table is dormant or has lost its number (ErrDamaged).
// It changes nothing.
func (c *Conn) Status() error {
	if err := c.dial(); err != nil {
		return err
	}
	states, err := c.states(families())
	if err != nil {
		return err
	}
	for _, s := range states {
		t := &Table{Family: s.family, Name: TableName}
		found, err := c.readFlags(t)
		if err != nil {
			return err
		}
		if stops := t.stops(s); found && len(stops) > 0 {
			return fmt.Errorf("%s: %w", stops[0], ErrDamaged)
		}
	}
	return nil
}
