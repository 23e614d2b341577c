// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// foreignHolders are files among the references to a shared fact that are nobody's:
// neither an attachment's nor a mesh's. They keep the fact for ever, and somebody made
// them, so they are shown and stay.
func (c *collector) foreignHolders(ev *evidence) (list []*Stray) {
	holders, facts, _ := ev.k.Records.Facts() // gather reports what is broken
	for _, f := range facts {
		for _, o := range holders[f.Name] {
			if o.Valid() || mesh.IsHolder(o) {
				continue
			}
			list = append(list, &Stray{
				Object: Object{"file", ev.k.Records.Reference(f.Name, o)}, State: Unsure,
				Why: fmt.Sprintf("it is no attachment's, and keeps the shared fact %s for ever", f.Name),
				Fix: "delete the file, then patchbay gc --apply",
			})
		}
	}
	return list
}
