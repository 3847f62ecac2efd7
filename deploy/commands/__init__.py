"""One file per command or group; each exports `app`, loaded when it is asked for."""
