// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// foreignHolders are files among the references to a shared fact that belong neither to an
// attachment nor to a mesh. They keep the fact for ever, and something outside patchbay
// made them, so gc reports them and keeps them.
func (c *collector) foreignHolders(ev *evidence) (list []*Stray) {
	holders, facts, _ := ev.k.Records.Facts() // gather reports broken ones
	for _, f := range facts {
		for _, o := range holders[f.Name] {
			if o.Valid() || mesh.IsHolder(o) {
				continue
			}
			list = append(list, &Stray{
				Object: Object{"file", ev.k.Records.Reference(f.Name, o)}, State: Unsure,
				Why: fmt.Sprintf("it belongs to no attachment, and keeps the shared fact %s for ever", f.Name),
				Fix: "delete the file, then patchbay gc --apply",
			})
		}
	}
	return list
}
