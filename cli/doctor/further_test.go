// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Copies of definitions that are missing, damaged or old are found, and so is a damaged plan. Without the plugin nobody needs them.
func TestFurtherNetworks(t *testing.T) {
	b := newBench(t)
	b.network("plain", `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`)
	b.healthy("networks")
	b.network("pods", `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.2.0.0/24"}},{"type":"networks","capabilities":{"io.kubernetes.cri.pod-annotations":true}}`)
	const silent = "warning: no agent has run since the boot"
	b.finds("networks", "problem: this node has no copy of the NetworkAttachmentDefinitions yet", silent)
	_, err := mirror.Write(b.paths, mirror.State{})
	b.must(err)
	b.finds("networks", silent)
	b.must(resident.Report{}.Write(b.paths, nodeService))
	b.healthy("networks")
	_, err = mirror.Write(b.paths, mirror.State{Definitions: []npwg.Definition{{Namespace: "shop", Name: "a", Config: "{}"}}})
	b.must(err)
	b.must(attached.Write(b.paths, &npwg.Plan{Network: "pods", ContainerID: "c1", IfName: "eth0"}))
	b.healthy("networks")
	data, err := json.Marshal(resident.Report{Schema: 1, At: clock.SinceBoot() - time.Hour})
	b.must(err)
	b.must(os.WriteFile(resident.ReportPath(b.paths, nodeService), data, 0o600))
	b.finds("networks", "warning: by definitions as they were 1h0m")
	b.must(resident.Report{}.Write(b.paths, nodeService))
	b.must(os.WriteFile(filepath.Join(b.paths.State, "node/networks/definitions/shop/a"), []byte("half"), 0o600))
	plan := attached.Owner(&npwg.Plan{Network: "pods", ContainerID: "c1", IfName: "eth0"})
	b.must(os.WriteFile(filepath.Join(attached.Dir(b.paths), string(plan)), []byte("half"), 0o600))
	b.finds("networks", "problem: definition shop/a: read", "warning: what was attached to pods is not known")
}
