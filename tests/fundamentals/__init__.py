"""How slowcall behaves, told one lesson at a time: read these first."""
