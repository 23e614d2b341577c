// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"path/filepath"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// annotationsCapability is the capability by which containerd (since 1.5) and CRI-O (since 1.29) pass a pod's annotations.
const annotationsCapability = "io.kubernetes.cri.pod-annotations"

// Conf is the configuration of this plugin.
type Conf struct {
	// ConfDir is the directory with the configurations of definitions without spec.config. A definition and its file have the
	// same name. Reference: none, ours only.
	ConfDir string `json:"confDir"`

	// BinDir is a directory in which plugins of further networks are found after those of CNI_PATH. Reference: none, ours only.
	BinDir string `json:"binDir"`

	// NamespaceIsolation fails a pod that names a definition of another namespace than its own, except of globalNamespaces.
	// Reference: none, ours only.
	NamespaceIsolation bool `json:"namespaceIsolation"`

	// GlobalNamespaces are the namespaces whose definitions all pods may use in spite of namespaceIsolation. Reference: none,
	// ours only.
	GlobalNamespaces []string `json:"globalNamespaces"`

	// OnInvalid says what happens to a pod whose annotation is not valid: fail, or ignore, which starts the pod without further
	// networks, as the standard has it. Reference: none, ours only.
	OnInvalid string `json:"onInvalid"`

	// Strict follows the standard where Multus does not: only one network may have default-route, and the addresses ips and mac
	// need a plugin that declares the capability. Without it, one network for each family may have default-route, and an address is
	// asked for in CNI_ARGS, too; an ADD fails if the result does not have it. Reference: none, ours only.
	Strict bool `json:"strict"`

	// Wait is how long an ADD waits for a file that the agent has not written yet, such as that of a definition which was just
	// created. After that it fails with code 11 (try again later). At most 1m. Reference: none, ours only.
	Wait string `json:"wait"`

	RuntimeConfig struct {
		// Annotations are the pod's annotations, of which only k8s.v1.cni.cncf.io/networks is read. Reference: none, ours
		// only.
		Annotations *annotations `json:"io.kubernetes.cri.pod-annotations"`
	} `json:"runtimeConfig"`

	wait time.Duration
}

// annotations takes the wanted one out of all while it is decoded: the others may be large, and nobody else's business.
type annotations struct {
	// Networks selects the further networks. Reference: none, ours only.
	Networks string `json:"k8s.v1.cni.cncf.io/networks"`
}

const mostWait = time.Minute

// defaults returns a configuration with the values of keys that are left out.
func defaults() *Conf {
	return &Conf{ConfDir: "/etc/cni/multus/net.d", GlobalNamespaces: []string{npwg.GlobalNamespace}, OnInvalid: "fail", Wait: "5s"}
}

// Load validates the configuration.
func (c *Conf) Load(*plugin.Request) (err error) {
	for key, dir := range map[string]string{"confDir": c.ConfDir, "binDir": c.BinDir} {
		if dir != "" && !filepath.IsAbs(dir) {
			return spec.Invalid("invalid %s %q: want an absolute path", key, dir)
		}
	}
	if c.OnInvalid != "fail" && c.OnInvalid != "ignore" {
		return spec.Invalid("invalid onInvalid %q: want fail or ignore", c.OnInvalid)
	}
	if c.wait, err = time.ParseDuration(c.Wait); err != nil || c.wait < 0 || c.wait > mostWait {
		return spec.Invalid("invalid wait %q: want a time from 0s to %v, such as 5s", c.Wait, mostWait)
	}
	return nil
}

// doubts warns of a list in which the plugin works, but not as intended.
func doubts(r *plugin.Request) []string {
	if in := r.InList; in == nil || in.Granted[annotationsCapability] {
		return nil
	}
	return []string{"without the capability " + annotationsCapability + " the runtime passes no annotations, and each ADD waits for a file of the agent"}
}
