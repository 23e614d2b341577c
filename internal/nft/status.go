// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/google/nftables"

// Status says whether this program could change our tables: the kernel has
// nftables, the caller has CAP_NET_ADMIN, and no newer program made a table
// (*NewerSchemaError). It looks at two elements and changes nothing.
func (c *Conn) Status() error {
	if err := c.dial(); err != nil {
		return err
	}
	_, err := c.states([]nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge})
	return err
}
