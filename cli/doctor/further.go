// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// furtherNetworks finds why ADDs cannot attach pods to further networks, or do it by old definitions. A node without the plugin networks
// has no finding.
func furtherNetworks(_ context.Context, n *Node) (found []Finding, err error) {
	const agent = "see that patchbayd node runs with --networks=on and reaches the API server; docs/networks.md"
	if len(n.networksWith("networks")) == 0 {
		return nil, nil
	}
	if !mirror.Written(n.Paths) {
		found = append(found, problem("pods with further networks cannot start: this node has no copy of the NetworkAttachmentDefinitions yet", agent))
	}
	if _, damaged := mirror.Definitions(n.Paths); len(damaged) > 0 {
		found = append(found, problem("pods cannot be attached to these networks: "+some(messages(damaged)), agent))
	}
	if _, damaged := attached.List(n.Paths); len(damaged) > 0 {
		found = append(found, warning("what was attached to pods is not known: "+some(messages(damaged)), "start these pods again; patchbay gc shows what is left of them"))
	}
	_, age, err := resident.ReadReport(n.Paths, nodeService)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		found = append(found, warning("nothing keeps this node's copies of the NetworkAttachmentDefinitions up to date: no agent has run since the boot", agent))
	case err != nil:
		return found, err
	case age > silence:
		found = append(found, warning(fmt.Sprintf("pods are attached by definitions as they were %v ago, and get no status: the agent is silent since", age.Round(time.Second)), agent))
	}
	return found, nil
}
